"""Writes templates.json: every template in templates/ over many conversations, rendered by Jinja2.

    python3 -m venv /tmp/jinja && /tmp/jinja/bin/pip install jinja2==3.1.6
    /tmp/jinja/bin/python tests/golden/make_templates.py

The templates are our own, one of each kind that models carry. models/tests/templates.rs compares.
"""

import json
import pathlib

from jinja_reference import CLOCK, render

HERE = pathlib.Path(__file__).parent

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather in <place> & 'around', é日本",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city"},
                "days": {"type": "integer", "default": 3, "enum": [1, 2, 3]},
                "deep": {"type": "object", "properties": {"f": {"type": ["number", "null"], "minimum": 0.5, "maximum": 1.0}}},
            },
            "required": ["city"],
        },
    },
}
RUN = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Runs a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
TOOLS = [WEATHER, RUN]
EXTRA = {
    "extra_list": [1, "two", None, True, 2.5, {"k": "v"}],
    "extra_map": {"b": 1, "a": "<&'\"é>", "float": 1.0, "small": 1e-7, "none": None, "deep": {"l": [], "m": {}}},
}


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(arguments, content="", name="get_weather", id="abcdefgh1"):
    function = {"name": name, "arguments": arguments}
    return assistant(content, tool_calls=[{"id": id, "type": "function", "function": function}])


def tool(text, id="abcdefgh1", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": id, "name": name}


ARGUMENTS = {"city": "Oslo", "days": 3, "deep": {"f": 1.0, "l": [1, "x\n\"y\"", None, False]}}
PLAIN = [
    [user("hi")],
    [user("  spaces \n\n"), assistant("\n kept? \n"), user("é日本😀 <b>&'\"")],
    [system("Be brief."), user("hi"), assistant("Hello."), user("again"), assistant("Yes."), user("stop")],
    [system("S"), user("a"), assistant("<think>\nhm\n</think>\n\nyo"), user("b")],
    [user("a"), assistant("x", reasoning_content="why"), user("b"), assistant("<think>\nlate\n</think>\n\nz")],
    [user("a"), user("b")],
    [system("S"), system("T"), user("a")],
    [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}],
]
WITH_TOOLS = [
    [user("Weather?")],
    [system("Be brief."), user("Weather?"), call(ARGUMENTS), tool('{"t": 4}'), assistant("4 C."), user("Rome?")],
    [user("Weather?"), call(ARGUMENTS, content="Let me see."), tool("4 C\n"), assistant("It is 4 C.")],
    [user("Weather?"), call(json.dumps(ARGUMENTS), content=None), tool("4 C")],
    [user("w"), {**call({"city": "A"}), "tool_calls": call({"city": "A"})["tool_calls"] + call({"command": "ls"}, name="run", id="abcdefgh2")["tool_calls"]}, tool("1"), tool("2", id="abcdefgh2", name="run")],
]


def cases():
    for generation in (True, False):
        for messages in PLAIN:
            yield {"messages": messages, "add_generation_prompt": generation}
    for messages in PLAIN[:3]:
        yield {"messages": messages, "extra": {**EXTRA, "enable_thinking": False}}
    for messages in WITH_TOOLS:
        yield {"messages": messages, "tools": TOOLS}


def main():
    conversations = list(cases())
    templates = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        # The table of values needs its names; the others are rendered over every conversation.
        wanted = [case if path.stem != "values" or "extra" in case else None for case in conversations]
        templates[path.stem] = [case and render(source, case) for case in wanted]
    document = {
        "clock": CLOCK.strftime("%Y-%m-%d %H:%M:%S"),
        "bos": "<s>",
        "eos": "</s>",
        "conversations": conversations,
        "templates": templates,
    }
    text = json.dumps(document, ensure_ascii=False, indent=1)
    (HERE / "templates.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
