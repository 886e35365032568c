"""``python -m dsv4_conformance.plugin.journal_schema`` prints what docs/journal-v1.schema.json holds."""

import json

from dsv4_conformance.plugin.journal import json_schema

print(json.dumps(json_schema(), indent=2))
