"""Flask: limits by an extension, with an interface similar to Flask-Limiter.

pip install '.[flask]'
python examples/flask_app.py
"""

from flask import Blueprint, Flask, request

from crestgate.integrations.flask import Crestgate

app = Flask(__name__)
gate = Crestgate(app, limiter="memory://", default_limits=["100/hour", "3/minute"])


@app.get("/plain")
def plain() -> str:  # the defaults
    return "plain"


@app.get("/item/<int:number>")
@gate.limit("2/minute")  # replaces the defaults
def item(number: int) -> str:
    return str(number)


@app.get("/ping")
@gate.exempt
def ping() -> str:
    return "pong"


search = gate.shared_limit("2/minute", scope="search", key=lambda: request.args.get("user"))


@app.get("/books")
@search
def books() -> str:
    return "books"


@app.get("/films")
@search
def films() -> str:
    return "films"


admin = Blueprint("admin", __name__, url_prefix="/admin")
gate.limit("1/minute")(admin)  # every view of it, each with a counter of its own


@admin.get("/users")
def users() -> str:
    return "users"


app.register_blueprint(admin)

client = app.test_client()
for paths in (["/plain"] * 4, ["/item/1", "/item/2", "/item/3"], ["/ping"] * 4, ["/admin/users"] * 2):
    print(paths[0], [client.get(path).status_code for path in paths])
for user in ("alice", "bob"):
    print(user, [client.get(f"{path}?user={user}").status_code for path in ("/books", "/films", "/books")])

denied = client.get("/item/4")
print(denied.headers["Content-Type"], denied.get_json()["violated-policies"])
