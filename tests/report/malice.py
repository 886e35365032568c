"""Strings that try to break out of a report, and journals that hold them everywhere a foreign text can stand."""

from pathlib import Path

from dsv4_conformance.plugin.journal import NotSelected
from dsv4_conformance.status import Status
from tests.report.made import result, waiver, write

SCRIPT = "<script>window.hit=1</script><img src=x onerror=\"window.hit=2\"><svg onload='window.hit=3'>"
STRINGS = (
    SCRIPT,
    "</script><script>window.hit=4</script><!--<script>",
    "]]></failure><testcase name='forged'/>&lt;&amp;%x;",
    "\x1b[2J\x1b]0;owned\x07\x1b[31mred\x9b31m",
    "one\ntwo\r\nthree\x00\x0b\x0c\x85\u2028\u2029four\ttab",
    "a|b `c` [d](javascript:hit) ![e](http://example.com/x.png) **f** <b>g</b> @someone",
    '" onmouseover="window.hit=5" x="',
    "{{ 7 * 7 }}{% raw %}{# #}${7*7}",
    "\u202eevil\u202c\u200b\ufeff\U000e0041",
    "javascript:window.hit=6//",
    "../../../../etc/passwd",
    "__proto__",
    "constructor",
    "9" * 4000,
)
HUGE = "x<b>" * (1 << 18)
"""1 MB."""


def journal(path: Path, text: str) -> Path:
    """A journal of a failing run with ``text`` as every name, id and sentence; a worker is half a character."""
    wrong = {
        "metrics": {f"{text}_ratio": 3.5, f"{text}_error": 1.0, "out_ratio": "nan",
                    "relative_time": 1.2, "relative_time_low": 1.1, "relative_time_high": 1.3,
                    "relative_time_limit": 1.1, "flop": 1e9, "bytes": 1e6, "achieved_flops": 2e14,
                    "ceiling_flops": 9e14, "ceiling_bandwidth": 4e12},
        "budget": {text: "inf"},
        "margins": {text: {text: 2.0}},
        "accuracy": {
            "task": text,
            "verdict": text,
            "paragraph": text,
            "candidate": text,
            "golden": {"name": text},
            "score": {"candidate": 0.9, "golden": 0.95, "low": -0.1, "difference": -0.05, "high": 0.0,
                      "lost": [{"item": text, "golden": 8, "runs": 8, "candidate": 0, "repeats": 2}]},
            "findings": [{"gate": text, "verdict": text, "sentence": text}],
        },
        "fault": {"id": text, "title": text, "breaks": text, "by": [text], "killed": False,
                  "url": "javascript:alert(1)"},
    }  # fmt: skip
    told = [
        result(text, Status.FAIL, requirement=text, surface=text, nodeid=f"suites/performance/t.py::{text}[{text}]",
               reason=text, reproducer=f"repro {text}", record=wrong, worker=text, waiver=text),
        result("INV-02-00000002"),
    ]  # fmt: skip
    write(
        path,
        told,
        name=text,
        version=text,
        profile=text,
        partial=text,
        problems=(text,),
        torch=text,
        run_id=f"id {text}",
        gpu=text,
        command=[text],
        not_selected=[NotSelected(what=text, reason=text)],
        waivers=[waiver(id=text, owner=text, issue="javascript:alert(1)", reason=text, selector={"tests": text})],
    )
    raw = path.read_bytes().replace(b"gw0", b"\\ud800")
    path.write_bytes(raw)
    return path
