"""Jinja2 set up as transformers' apply_chat_template does (utils/chat_template_utils.py), with the clock passed in.

Used by make_templates.py. Needs only the Python package jinja2 (3.1).
"""

import datetime
import json

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

CLOCK = datetime.datetime(2026, 3, 14, 15, 9, 26)


class GenerationTag(Extension):
    """transformers' AssistantTracker without the tracking: the body is a call block of its own scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = CLOCK.strftime
    return env


def render(source, case):
    """{"render": text} or {"error": text}."""
    try:
        text = environment().from_string(source).render(
            messages=case["messages"],
            tools=case.get("tools") or None,
            documents=None,
            add_generation_prompt=case.get("add_generation_prompt", True),
            bos_token=case.get("bos", "<s>"),
            eos_token=case.get("eos", "</s>"),
            **case.get("extra", {}),
        )
        return {"render": text}
    except Exception as error:  # the kind does not matter, the text does
        return {"error": f"{type(error).__name__}: {error}"}
