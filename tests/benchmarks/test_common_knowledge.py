"""Questions on our sections to a model without context, and marks of the sections that it knows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from benchmarks.knowledge import common
from benchmarks.knowledge.common import Model, known, marks_of, questions_of, sections_of
from retrieval.readers import CommonKnowledge, CommonMark

TEXT = """\
Every warp of this family has a width of 32 lanes. It is `ldmatrix` that loads four tiles for the
matrix unit. Short one 7.

| a | 12 |

```cuda
cp.async.bulk.commit_group();
cudaFuncSetAttribute(kernel, attribute_of_size, bytes);
mbarrier.try_wait(barrier_of_stage);
```
"""


class Scripted(BaseHTTPRequestHandler):
    """Knows the width of a warp, and the code; of the second question only the first time."""

    calls = 0

    def do_POST(self) -> None:
        type(self).calls += 1
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        lines = asked["messages"][0]["content"].splitlines()
        numbered = {line.partition(".")[0]: line for line in lines if line[:1].isdigit()}
        answers = {number: self.answer(line) for number, line in numbered.items()}
        text = f"Here it is:\n```json\n{json.dumps(answers)}\n```"
        body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, line: str) -> str:
        if "Write the cuda code" in line:
            return TEXT
        if "lanes" in line:
            return "32.0"
        return "ldmatrix" if self.calls == 1 else "stmatrix"

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[Model]:
    Scripted.calls = 0
    server = HTTPServer(("127.0.0.1", 0), Scripted)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Model(f"http://127.0.0.1:{server.server_port}/v1", "scripted")
    server.shutdown()
    server.server_close()


def test_sections_answered_right_in_every_vote_are_marked(model: Model, tmp_path: Path) -> None:
    questions = questions_of("D", "Copies in bulk", TEXT)
    assert [q.right.splitlines()[0] for q in questions][1:] == ["32", "ldmatrix"]
    assert questions[1].asked.endswith("a width of ____ lanes.")
    right = known(model, questions, votes=2, batch=10)
    assert [q.kind for q in right] == ["idiom", "question"] and Scripted.calls == 2
    marks = marks_of(right, questions, "scripted", "strong", "2026-11-29")
    assert len(marks) == 2 and all(mark.statement for mark in marks)
    left = CommonKnowledge(marks).without("D", TEXT)
    assert "32 lanes" not in left and "cudaFuncSetAttribute" not in left and "ldmatrix" in left
    path = tmp_path / "marks.json"
    common.write_marks(path, marks, questions)
    assert [CommonMark(**row) for row in json.loads(path.read_text())] == sorted(
        marks, key=lambda mark: mark.statement
    )
    both = marks_of(questions, questions, "scripted", "strong", "2026-11-29")
    assert CommonKnowledge(both).has("D", "Copies in bulk")


def test_hundreds_of_questions_are_drawn_from_shipped_knowledge() -> None:
    every = [q for section in sections_of(common.KNOWLEDGE) for q in questions_of(*section)]
    chosen = common.drawn(every, 300, 60, seed=1)
    assert sum(q.kind == "idiom" for q in chosen) == 60 and len(chosen) == 360
    assert all(q.is_right(q.right) and not q.is_right("") for q in chosen)
    assert all(common.BLANK in q.asked for q in chosen if q.kind == "question")
