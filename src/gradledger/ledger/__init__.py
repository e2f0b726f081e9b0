"""Facts about a running program: probes see them, the recorder orders them, the sink keeps them."""
