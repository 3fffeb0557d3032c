# raypid for machines without a GPU: torch's CPU build, the versions of constraints.txt, a user who is not root.
# Build it in the clone: docs/install.md, Docker. It is linted (`make lint`), and has not been built.
FROM python:3.11-slim-trixie AS build

# The --index-url that the selector on pytorch.org shows for Linux, Pip, Python, CPU. It comes first, since pip's own torch brings CUDA.
ARG TORCH_INDEX
ARG EXTRAS=torch,ray
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/raypid
COPY constraints.txt /src/
# What torch needs itself comes with the rest: that index has not all of the pinned versions.
RUN test -n "${TORCH_INDEX}" || { echo "Give --build-arg TORCH_INDEX=..., see docs/install.md" >&2; exit 1; }; \
    /opt/raypid/bin/pip install -c /src/constraints.txt --no-deps --index-url "${TORCH_INDEX}" torch
COPY pyproject.toml README.md LICENSE /src/
COPY raypid /src/raypid
COPY tools/long_description.py /src/tools/
RUN /opt/raypid/bin/pip install -c /src/constraints.txt "/src[${EXTRAS}]"

FROM python:3.11-slim-trixie

# With your own number (`id -u`), what the container writes into your folder, mounted at /work, is yours. The secret that signs runs
# is in ~/.local/share/raypid, for a volume.
ARG UID=1000
RUN useradd --create-home --uid "${UID}" raypid \
    && install --directory --owner raypid --group raypid /work /home/raypid/.local /home/raypid/.local/share /home/raypid/.local/share/raypid
COPY --from=build /opt/raypid /opt/raypid
ENV PATH=/opt/raypid/bin:$PATH PYTHONUNBUFFERED=1
USER ${UID}
WORKDIR /work
ENTRYPOINT ["raypid"]
CMD ["--help"]
