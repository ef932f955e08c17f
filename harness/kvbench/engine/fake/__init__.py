"""The fake engine: vLLM's surface over a simulated cache, for unit tests, faults and rehearsals.

It proves nothing about vLLM, and every output made with it says so. Started as a process of its own
(`python -m kvbench.engine.fake`), so that everything before the HTTP border is the real harness.
"""
