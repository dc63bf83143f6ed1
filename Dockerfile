# One image for web, worker, beat and simulated hosts; the command says which. docs/hosts.md tells how a machine with
# GPUs joins; it does not run this image.
FROM node:20-bookworm-slim AS pages
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# Of 80 MB of packages the pages use these files.
RUN npm ci --ignore-scripts \
    && mkdir -p kept/@tabler/core/dist/css kept/@tabler/icons/icons kept/uplot/dist kept/sortablejs/modular \
    && cd node_modules \
    && cp @tabler/core/dist/css/tabler.min.css ../kept/@tabler/core/dist/css \
    && cp -r @tabler/icons/icons/outline ../kept/@tabler/icons/icons \
    && cp uplot/dist/uPlot.esm.js uplot/dist/uPlot.min.css ../kept/uplot/dist \
    && cp sortablejs/modular/sortable.esm.js ../kept/sortablejs/modular

FROM python:3.11-slim-bookworm AS packages
COPY requirements-run.lock ./
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --no-compile --require-hashes -r requirements-run.lock \
    && /opt/venv/bin/pip uninstall --yes pip setuptools \
    && /opt/venv/bin/python -m compileall -q -j 0 /opt/venv/lib

# The router's hot path as machine code, by the interpreter and beside the packages it will run with. Compiler and headers
# stay in this stage.
FROM packages AS compiled
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY requirements-compile.lock ./
RUN python -m pip --python /opt/venv/bin/python install --no-cache-dir --require-hashes -r requirements-compile.lock
WORKDIR /app
COPY tools/compile-router tools/dataclass_inits.py tools/train-router tools/
COPY routing routing
RUN /opt/venv/bin/python tools/compile-router

FROM python:3.11-slim-bookworm
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DATA_DIR=/data
WORKDIR /app
COPY --from=packages /opt/venv /opt/venv
COPY --from=pages /app/kept node_modules
COPY manage.py ./
COPY console console
COPY routing routing
COPY --from=compiled /app/out/compiled out/compiled
COPY templates templates
COPY static static
# Byte code is made once, here: containers cannot write beside the code. The machine code must fit these sources, or it
# would not be used. The folders are where volumes are mounted: a new volume takes over their owner.
RUN python -m compileall -q console routing \
    && python -c "import routing.app, sys; sys.exit(not routing.is_compiled)" \
    && useradd --uid 10001 --no-create-home --home-dir /data switchyard \
    && install -d -o switchyard -g switchyard /data /secrets /join
USER switchyard
EXPOSE 8000
CMD ["python", "manage.py", "web", "--host", "0.0.0.0", "--port", "8000"]
