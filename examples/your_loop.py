"""An optimizer's loop: post the compiler's output, prompt with the answer, report the outcome."""

import sys

import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8321"
LOG = "OutOfResources: out of resource: shared memory, Required: 294912, Hardware limit: 232448."

with httpx.Client(base_url=URL, timeout=30) as kernlore:
    request = {"log": LOG, "hardware": "h100", "language": "triton"}
    answer = kernlore.post("/retrieve", json=request).raise_for_status().json()
    print(answer["context"])  # goes into your model's prompt
    # ... your model writes the next kernel, your harness measures it ...
    outcome = {"used": [answer["excerpts"][0]["id"]], "correct": None, "speedup": None}  # yours
    kernlore.post(f"/retrievals/{answer['retrieval_id']}/outcome", json=outcome).raise_for_status()
