# What `make test` and `.ci/run` need: Python 3.11, a newer one for JAX 0.12, make, git, and a browser for tests of the explorer.
#
#     docker build -t mpmd_trace .
#     docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" mpmd_trace .ci/run
FROM python:3.13-slim-bookworm AS newest
FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends chromium fonts-dejavu-core git make \
 && rm -rf /var/lib/apt/lists/*
COPY --from=newest /usr/local/bin/python3.13 /usr/local/bin/
COPY --from=newest /usr/local/lib/python3.13 /usr/local/lib/python3.13
COPY --from=newest /usr/local/lib/libpython3.13.so.1.0 /usr/local/lib/
RUN ldconfig && python3.13 -c "import ssl, venv, ensurepip" && pip install --no-cache-dir uv
# The user of `--user` has no home of its own, and the checkout belongs to somebody else than root.
ENV HOME=/tmp
RUN git config --system --add safe.directory /work
WORKDIR /work
CMD ["make", "test"]
