"""A first scenario from three answers: model, connector and host memory, GPUs or this CPU."""
