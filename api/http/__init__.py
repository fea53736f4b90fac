"""The HTTP door: `api.app.create_app`."""
