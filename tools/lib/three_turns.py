"""Asks a mesh about a text, asks the same again, and asks a follow-up question. After each answer: how much of the
prompt was restored instead of computed, from which tier, and the time to the first token.

usage: three_turns.py KVMESH DATA_DIR QUESTION TEXT_FILE..."""
import json
import pathlib
import subprocess
import sys

TEXT_BYTES = 8200  # some 2,000 tokens
FOLLOW_UP = "Name one thing in it that can fail."


def ask(kvmesh, router, messages, parent_key):
    command = [kvmesh, "generate", "--router", router, "--chat-file", "-", "--max-tokens", "64", "--json"]
    if parent_key:
        command += ["--parent-key", parent_key]
    done = subprocess.run(command, input=json.dumps(messages), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def report(answer):
    usage = answer["usage"]
    tiers = ", ".join(f"{tier} {tokens}" for tier, tokens in sorted(usage["cached_by_tier"].items()))
    reused = f"{usage['cached_tokens']} of {usage['prompt_tokens']} prompt tokens reused"
    why = f"from {tiers}" if tiers else usage["cause"]
    print(f"[{usage['outcome']}: {reused} ({why}), first token after {answer['timings']['ttft_ms']:.0f} ms]\n", flush=True)


def main():
    kvmesh, data_dir, question, *files = sys.argv[1:]
    router = json.loads(pathlib.Path(data_dir, "mesh.json").read_text())["router"]
    text = "".join(pathlib.Path(name).read_text() for name in files)[:TEXT_BYTES]
    messages = [{"role": "user", "content": f"{text}\n\n{question}"}]
    answer = None
    for turn in ("You", "You, again"):
        print(f"{turn}: {question} (about a text of {len(text)} characters)", flush=True)
        answer = ask(kvmesh, router, messages, None)
        print(answer["text"].strip())
        report(answer)
    messages += [{"role": "assistant", "content": answer["text"]}, {"role": "user", "content": FOLLOW_UP}]
    print(f"You: {FOLLOW_UP}", flush=True)
    answer = ask(kvmesh, router, messages, answer["finish_key"])
    print(answer["text"].strip())
    report(answer)


main()
