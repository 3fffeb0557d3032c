# raypid for machines with NVIDIA GPUs: torch with CUDA 13, the versions of constraints.txt, a user who is not root.
# Build it in the clone: docs/install.md, Docker. It is linted (`make lint`), and has not been built.
#
# torch from pip brings CUDA's libraries, so the smallest of NVIDIA's images is enough: it has what the container toolkit looks for.
# Ubuntu 24.04 has Python 3.12, for which the same versions are pinned.
FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS python

# hadolint ignore=DL3008  # Ubuntu keeps one build of each package: a pinned one is gone with the next fix
RUN apt-get update \
    && apt-get install --no-install-recommends --yes python3.12 \
    && rm -rf /var/lib/apt/lists/*

FROM python AS build

ARG EXTRAS=torch,ray
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --no-install-recommends --yes python3.12-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3.12 -m venv /opt/raypid
COPY constraints.txt pyproject.toml README.md LICENSE /src/
COPY raypid /src/raypid
COPY tools/long_description.py /src/tools/
RUN /opt/raypid/bin/pip install -c /src/constraints.txt "/src[${EXTRAS}]"

FROM python

# With your own number (`id -u`), what the container writes into your folder, mounted at /work, is yours. The secret that signs runs
# is in ~/.local/share/raypid, for a volume. Ubuntu's image has a user 1000.
ARG UID=1000
RUN if id ubuntu > /dev/null 2>&1; then userdel --remove ubuntu; fi \
    && useradd --create-home --uid "${UID}" raypid \
    && install --directory --owner raypid --group raypid /work /home/raypid/.local /home/raypid/.local/share /home/raypid/.local/share/raypid
COPY --from=build /opt/raypid /opt/raypid
ENV PATH=/opt/raypid/bin:$PATH PYTHONUNBUFFERED=1
USER ${UID}
WORKDIR /work
ENTRYPOINT ["raypid"]
CMD ["--help"]
