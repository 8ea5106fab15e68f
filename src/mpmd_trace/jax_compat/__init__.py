"""The only package that touches JAX's internals (`jax._src`, `jax.interpreters`, `jaxlib`)."""
