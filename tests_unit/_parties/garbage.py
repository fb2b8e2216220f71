"""A command that introduces itself properly and then prints something else than the protocol."""

import json
import sys

asked = json.loads(sys.stdin.readline())
if asked["question"] == "hello":
    said = {"name": "garbage", "version": "1", "offers": ["blocks"], "layouts": [], "labels": {}, "persistent": False}
    sys.stdout.write(json.dumps({"protocol": "rankproof/1", "id": asked["id"], "answer": said}))
else:
    sys.stdout.write("NCCL INFO bootstrap : using eth0")
