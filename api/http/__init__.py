"""The HTTP interface; `api.app.create_app` makes the application."""
