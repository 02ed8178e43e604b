"""The texts of a translated template, in Jinja: how Go writes values, and what Ollama makes of messages.

`MARKS` stands for an object of the model's marks. `MESSAGES` and `ROUNDS` end inside their last tag, so that the
translation decides whether Jinja removes the line break behind it.
"""

from __future__ import annotations

import json

JSON = """
{%- macro go_json(value) -%}
{{ value | tojson(separators=(',', ':')) | replace('<', '\\\\u003c') | replace('>', '\\\\u003e')
| replace('&', '\\\\u0026') }}
{%- endmacro -%}"""
VALUE = """
{%- macro go_value(value) -%}
{%- if value is string or value is number and value is not boolean -%}{{ value }}
{%- elif value is boolean -%}{{ 'true' if value else 'false' }}
{%- elif value is none or value is undefined -%}{{ '<no value>' }}
{%- else -%}{{ raise_exception('the TEMPLATE writes a list or an object, which is supported with json only') }}
{%- endif -%}
{%- endmacro -%}"""
TYPES = """
{%- macro go_types(types) -%}
{{ types[0] if types | length == 1 else '[' ~ (types | join(' ')) ~ ']' if types else '' }}
{%- endmacro -%}"""
PARTS = """
{%- macro go_parts(parts) -%}
{%- for part in parts -%}
{%- if part['type'] == 'text' -%}{{ part['text'] }}
{%- elif part['type'] in MARKS -%}{{ MARKS[part['type']] }}
{%- else -%}{{ raise_exception('the TEMPLATE of this model has no place for an ' ~ part['type']) }}
{%- endif -%}
{%- endfor -%}
{%- endmacro -%}"""
MESSAGES = """
{%- set chat = namespace(messages=[], systems=[], system='') -%}
{%- for each in messages -%}
{%- set text = each['content'] if each['content'] is string else go_parts(each['content'] or []) -%}
{%- if each['role'] == 'system' -%}{%- set chat.systems = chat.systems + [text] -%}{%- endif -%}
{%- if chat.messages and chat.messages[-1]['role'] == each['role'] and each['role'] != 'tool' -%}
{%- set last = chat.messages[-1] -%}
{%- set chat.messages = chat.messages[:-1] + [{'role': last['role'], 'content': last['content'] ~ '\\n\\n' ~ text,
'thinking': last['thinking'], 'tool_calls': last['tool_calls'], 'tool_name': last['tool_name'],
'tool_call_id': last['tool_call_id']}] -%}
{%- else -%}
{%- set chat.messages = chat.messages + [{'role': each['role'], 'content': text,
'thinking': each['reasoning_content'] or '', 'tool_calls': each['tool_calls'] or [],
'tool_name': each['name'] or '', 'tool_call_id': each['tool_call_id'] or ''}] -%}
{%- endif -%}
{%- endfor -%}
{%- set chat.system = chat.systems | join('\\n\\n') """
ROUNDS = """
{%- set now = namespace(system='', question='', answer='') -%}
{%- for each in chat.messages -%}
{%- if each['role'] == 'system' -%}
{%- if now.question or now.answer -%}{{ go_round(now.system, now.question, now.answer) }}
{%- set now.question = '' -%}{%- set now.answer = '' -%}{%- endif -%}
{%- set now.system = each['content'] -%}
{%- elif each['role'] == 'user' -%}
{%- if now.answer -%}{{ go_round(now.system, now.question, now.answer) }}
{%- set now.system = '' -%}{%- set now.answer = '' -%}{%- endif -%}
{%- set now.question = each['content'] -%}
{%- elif each['role'] == 'assistant' -%}
{%- set now.answer = each['content'] -%}
{%- endif -%}
{%- endfor -%}
{%- if now.answer and not add_generation_prompt -%}{{ go_round(now.system, now.question, now.answer) }}
{%- else """


def text(text: str) -> str:
    """A text of the output: as it is, or in quotes if Jinja would read it otherwise."""
    if any(each in text for each in ("{{", "{%", "{#", "\r")) or text.endswith("{"):
        return f"{{{{ {literal(text)} }}}}"
    return text


def literal(text: str) -> str:
    """A text in quotes. Jinja reads the escapes of JSON, except for pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False)
