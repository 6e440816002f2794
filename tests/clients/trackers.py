"""Reads what a run left for W&B and MLflow with their own programs, and prints it as JSON.

`wandb sync` uploads the offline run to a stand-in of W&B's server on loopback, which keeps what it is sent. MLflow's client reads
the file store. Needs wandb 0.31.0 and mlflow-skinny 3.17.2: python trackers.py RUN
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path


class Server(http.server.ThreadingHTTPServer):
    """Answers what `wandb sync` asks, and keeps lines of files, uploads and the run's record."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lines: dict[str, list[str]] = {}
        self.uploads: dict[str, bytes] = {}
        self.runs: list[dict] = []
        self.exit_code = None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """A client that goes without a word is no error."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_):
        pass

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data

    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer({})

    def do_PUT(self):
        self.server.uploads[self.path.removeprefix("/upload/")] = self.body()
        self.answer({})

    def do_POST(self):
        sent = json.loads(self.body() or b"{}")
        if not self.path.startswith("/graphql"):
            for name, chunk in (sent.get("files") or {}).items():
                lines = self.server.lines.setdefault(name, [])
                lines[chunk["offset"]:] = chunk["content"]
            if sent.get("complete"):
                self.server.exit_code = sent.get("exitcode")
            return self.answer({"exitcode": None, "limits": {}})
        name, variables = sent.get("operationName"), sent.get("variables") or {}
        data = {}
        if name == "UpsertBucket":
            self.server.runs.append(variables)
            project = {"id": "p", "name": "p", "entity": {"id": "e", "name": "e"}}
            bucket = {"id": "r", "name": variables["name"], "displayName": None, "sweepName": None, "config": None,
                      "description": None, "project": project, "historyLineCount": 0}
            data = {"upsertBucket": {"bucket": bucket, "inserted": True}}
        elif name == "Viewer":
            data = {"viewer": {"id": "u", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}}}
        elif name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.server.address}/upload/{file}"} for file in variables["files"]]
            data = {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        return self.answer({"data": data})


def wandb_sync(run: Path) -> dict:
    """What W&B's server would have of the run."""
    server = Server()
    folders = sorted(run.glob("wandb/offline-run-*"))
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "WANDB_BASE_URL": server.address, "WANDB_API_KEY": "0" * 40, "HOME": home,
               "WANDB_DIR": home, "WANDB_ERROR_REPORTING": "false"}
        copies = [shutil.copytree(folder, Path(home, folder.name)) for folder in folders]  # it marks what it has sent
        command = [sys.executable, "-m", "wandb", "sync", *copies]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise SystemExit(f"wandb sync: {done.returncode}\n{done.stdout}{done.stderr}")
    first = server.runs[0]
    history = [json.loads(line) for line in server.lines.get("wandb-history.jsonl", [])]
    summary = json.loads(server.lines["wandb-summary.json"][-1])
    return {
        "folders": len(folders), "id": first["name"], "project": first["project"], "name": first["displayName"],
        "tags": first["tags"], "config": json.loads(first["config"]), "history": history, "summary": summary,
        "uploads": {name: data.decode(errors="replace") for name, data in server.uploads.items()},
        "system": len(server.lines.get("wandb-events.jsonl", [])), "exit_code": server.exit_code,
    }


def mlflow_run(run: Path) -> dict:
    """What MLflow's client finds in the store."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(run / "mlruns").resolve().as_uri())
    experiments = [e for e in client.search_experiments() if e.name != "Default"]
    [experiment] = experiments
    [found] = client.search_runs([experiment.experiment_id])
    metrics = {key: [[m.step, m.value] for m in client.get_metric_history(found.info.run_id, key)]
               for key in found.data.metrics}
    tables = json.loads(found.data.tags.get("mlflow.loggedArtifacts", "[]"))
    texts = {table["path"]: json.loads(Path(client.download_artifacts(found.info.run_id, table["path"])).read_text())
             for table in tables}
    # MLflow writes here as well.
    client.set_tag(found.info.run_id, "seen", "yes")
    return {
        "experiment": experiment.name, "name": found.info.run_name, "status": found.info.status,
        "ended": found.info.end_time is not None, "params": found.data.params, "tags": found.data.tags,
        "metrics": metrics, "tables": texts,
        "artifacts": sorted(artifact.path for artifact in client.list_artifacts(found.info.run_id)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    print(json.dumps({"wandb": wandb_sync(run), "mlflow": mlflow_run(run)}))
