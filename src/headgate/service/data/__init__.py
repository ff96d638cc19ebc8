"""The data plane: "may this request pass?", around the framework, because it is asked by the thousand."""
