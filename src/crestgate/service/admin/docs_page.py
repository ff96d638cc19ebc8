"""The OpenAPI document as an HTML page, without scripts or external resources, so it works in closed networks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["POLICY", "docs_page"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The Content-Security-Policy of the page: its own style, and nothing else."""
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent);
  --soft: color-mix(in srgb, currentColor 6%, transparent) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); padding-bottom: .3rem }
code, pre { font: 14px/1.45 ui-monospace, monospace } pre { background: var(--soft); padding: .7rem; overflow: auto }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 4.5rem } summary code { margin-right: .7rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td, th { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-top: 1px solid var(--line) }
nav a { margin-right: .8rem }
"""
MAX_DEPTH = 6


def docs_page(description: Mapping[str, Any]) -> str:
    """The page of a description."""
    info = description["info"]
    tags = {tag["name"]: tag.get("description", "") for tag in description.get("tags", ())}
    links = " ".join(f'<a href="#{escape(tag)}">{escape(tag)}</a>' for tag in tags)
    families = "".join(_family(description, tag, about) for tag, about in tags.items())
    schemas = "".join(
        f"<details><summary><code>{escape(name)}</code></summary>"
        f'<div id="schema-{escape(name)}">{_schema(schema)}</div></details>'  # a link to the inner element opens it
        for name, schema in description["components"]["schemas"].items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}</h1><p>Version {escape(info['version'])} · "
        '<a href="/openapi.json">openapi.json</a></p>'
        f'{_prose(info["description"])}<nav>{links} <a href="#schemas">schemas</a></nav>{families}'
        f'<h2 id="schemas">Schemas</h2>{schemas}</body></html>'
    )


def _family(description: Mapping[str, Any], tag: str, about: str) -> str:
    operations = "".join(
        _operation(method, path, operation)
        for path, item in description["paths"].items()
        for method, operation in item.items()
        if tag in operation["tags"]
    )
    return f'<h2 id="{escape(tag)}">{escape(tag.capitalize())}</h2><p>{_inline(about)}</p>{operations}'


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    return (
        f"<details><summary><b>{escape(method.upper())}</b><code>{escape(path)}</code>"
        f"{escape(operation['summary'])}</summary>{_prose(operation.get('description', ''))}"
        f"{_parameters(operation)}{_body(operation)}{_responses(operation)}</details>"
    )


def _parameters(operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code></td><td>{escape(one['in'])}"
        f"{', required' if one.get('required') else ''}</td><td>{_kind(one['schema'])}</td>"
        f"<td>{_inline(one.get('description') or one['schema'].get('description', ''))}</td></tr>"
        for one in operation.get("parameters", ())
    )
    return f"<table><tr><th>Parameter</th><th>In</th><th>Type</th><th></th></tr>{rows}</table>" if rows else ""


def _body(operation: Mapping[str, Any]) -> str:
    body = operation.get("requestBody")
    return "" if body is None else f"<p>Body: {_content(body)}</p>"


def _responses(operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(status)}</td><td>{_inline(response['description'])}</td><td>{_content(response)}"
        f"{''.join(f' <code>{escape(name)}</code>' for name in response.get('headers', {}))}</td></tr>"
        for status, response in operation["responses"].items()
    )
    return f"<table><tr><th>Response</th><th></th><th></th></tr>{rows}</table>"


def _content(response: Mapping[str, Any]) -> str:
    return ", ".join(
        f"<code>{escape(media)}</code> {_kind(content['schema'])}"
        for media, content in response.get("content", {}).items()
    )


def _schema(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' (optional)'}</td><td>{_kind(field)}</td>"
        f"<td>{_inline(field.get('description', ''))}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    examples = "".join(
        f"<pre>{escape(json.dumps(example, indent=2, ensure_ascii=False))}</pre>"
        for example in schema.get("examples", ())
    )
    return f"{_prose(schema.get('description', ''))}<table>{rows}</table>{examples}"


def _kind(schema: Mapping[str, Any], depth: int = 0) -> str:
    """Short description of the type of a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#schema-{escape(name)}">{escape(name)}</a>'
    if depth > MAX_DEPTH:
        return "…"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_kind(one, depth + 1) for one in schema[several])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    if "prefixItems" in schema:
        return f"list of {', '.join(_kind(one, depth + 1) for one in schema['prefixItems'])}"
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), depth + 1)}"
    bounds = "".join(_bounds(schema))
    return escape(str(schema.get("type", "anything"))) + escape(bounds)


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤")):
        if name in schema:
            yield f" {sign} {schema[name]}"
    if "default" in schema and schema["default"] is not None:
        yield f" = {json.dumps(schema['default'])}"


def _prose(text: str) -> str:
    return "".join(f"<p>{_inline(' '.join(part.split()))}</p>" for part in text.split("\n\n") if part.strip())


def _inline(text: str) -> str:
    """Render the Markdown that descriptions use: `code` and **bold**."""
    out = []
    for position, part in enumerate(text.split("`")):
        if position % 2:
            out.append(f"<code>{escape(part)}</code>")
            continue
        for bold, words in enumerate(part.split("**")):
            out.append(f"<b>{escape(words)}</b>" if bold % 2 else escape(words))
    return "".join(out)
