# The one image of every emulated host: a small Debian with Python, and Thalweg in /opt/thalweg.
#
# `thalweg testbed build` prepares the wheelhouse and builds it without a network. By hand, with Thalweg's wheel in
# ./wheelhouse and the others in ./wheelhouse/libraries:
#     docker build --network none --build-arg BASE_IMAGE=debian-with-python -t thalweg .
# The base needs python3 (3.11 or newer) with venv; with iproute2, `ip` and `tc` can be used on hosts.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
LABEL io.thalweg=stage
RUN python3 -I -m venv /opt/thalweg && mkdir /wheelhouse
# Libraries first: while they stay the same, a new state of Thalweg is a layer of its own.
COPY wheelhouse/libraries /wheelhouse
RUN /opt/thalweg/bin/python -I -m pip install --disable-pip-version-check --quiet --no-index --no-deps /wheelhouse/*.whl
COPY wheelhouse/thalweg-*.whl /wheelhouse/
RUN /opt/thalweg/bin/python -I -m pip install --disable-pip-version-check --quiet --no-index --no-deps /wheelhouse/thalweg-*.whl \
 && /opt/thalweg/bin/python -I -m pip uninstall --quiet --yes setuptools pip

FROM ${BASE_IMAGE}
COPY --from=build /opt/thalweg /opt/thalweg
RUN useradd --create-home --shell /bin/sh thalweg
ENV PATH=/opt/thalweg/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
USER thalweg
WORKDIR /home/thalweg
EXPOSE 7800 7801
# Something listens on port 7800 (1E78); reading the table costs nothing, an interpreter every minute would.
HEALTHCHECK --interval=60s --timeout=5s --retries=2 CMD grep -q ":1E78 00000000:0000 0A" /proc/net/tcp
# A testbed gives its own options. By hand, give keys, or --insecure on a network of your own: -e THALWEG_HOST_OPTIONS=…
CMD ["sh", "-c", "exec thalweg host --name \"$(hostname)\" --listen \"tcp://$(hostname -i):7800\" $THALWEG_HOST_OPTIONS"]
