"""A scorer with the interface of the real one: `requests`, `score` and `score_row`."""

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def request_for(row: Row) -> Row:
    body: Row = {"categories": ["hardware"], "k": 5, "hardware": row["hardware"]}
    if row["kind"] == "signal":
        return body | {"signal": row["query"]}
    return body | {"log" if row["kind"] == "error" else "query": row["query"]}


def score_row(row: Row, excerpts: list[Row]) -> dict[str, float]:
    found = [n for n, e in enumerate(excerpts, 1) if row["evidence"] in e["text"]]
    foreign = [e for e in excerpts if e["hardware"] and row["hardware"] not in e["hardware"]]
    hit = 1.0 if found else 0.0
    return {
        "recall@5": hit,
        "recall@10": hit,
        "mrr@10": 1 / found[0] if found else 0.0,
        "ndcg@10": 1 / found[0] if found else 0.0,
        "foreign@10": len(foreign) / len(excerpts) if excerpts else 0.0,
    }


def rows_of(path: str) -> list[Row]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def main(command: str, gold: str, answers: str = "") -> None:
    rows = rows_of(gold)
    if command == "requests":
        for row in rows:
            print(json.dumps({"id": row["id"], "body": request_for(row)}))
        return
    given = {a["id"]: a["excerpts"] for a in rows_of(answers)}
    scores = [score_row(row, given[row["id"]]) for row in rows]
    print(f"rows {len(rows)} ndcg@10 {sum(s['ndcg@10'] for s in scores) / len(rows):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
