"""The HTTP door: `api.http.app.create_app`."""
