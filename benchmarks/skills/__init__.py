"""What the library costs and what learning brings."""
