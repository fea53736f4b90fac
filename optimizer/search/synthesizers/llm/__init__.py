"""Language models as proposers: a prompt rendered from the context, a structured answer read back.

`LlmSynthesizer` is the door; litellm is imported when the first call is made.
"""
