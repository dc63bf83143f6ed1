# One image for web, worker, beat and simulated hosts; the command says which. Hosts with GPUs install from the lock file.
FROM node:20-bookworm-slim AS pages
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts

FROM python:3.11-slim-bookworm
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 DATA_DIR=/data
WORKDIR /app
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY --from=pages /app/node_modules node_modules
COPY manage.py ./
COPY console console
COPY routing routing
COPY templates templates
COPY static static
RUN useradd --create-home switchyard && mkdir /data && chown switchyard /data
USER switchyard
VOLUME /data
EXPOSE 8000
CMD ["python", "manage.py", "web", "--host", "0.0.0.0", "--port", "8000"]
