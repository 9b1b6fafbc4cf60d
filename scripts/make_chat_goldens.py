#!/usr/bin/env python3
"""Render chat templates with transformers' `apply_chat_template`, for the tests to compare rustyflow with.

    pip install transformers jinja2
    python scripts/make_chat_goldens.py --out tests/goldens/chat.json

Each case holds a template, the names of its chat and of its tools, and the rendered text; `null` where transformers
raises an error.
The first cases are templates in the style of published models, shortened; the others are one expression each.
"""

import argparse
import json
import re
from pathlib import Path

import jinja2
import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

USER, ANSWER = {"role": "user", "content": "What is <2 + 2>?"}, {"role": "assistant", "content": " It's 4. "}
SYSTEM = {"role": "system", "content": "Be  brief.\n"}
CHAT = [SYSTEM, USER, ANSWER, {"role": "user", "content": "Größe & \"naïve\" 🦆?"}]
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather's <current> state & more",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Stadt, z. B. \"Köln\""},
            "days": {"type": "integer", "default": None, "minimum": 0.5, "enum": [1, 2.0, 1e21, 1e-7, True]}}}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
]
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"type": "function", "id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}}]}
TOOL_CHAT = [SYSTEM, USER, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "c1", "content": "{\"t\": 3}"},
             {"role": "assistant", "reasoning_content": "Cold.\n", "content": "3 degrees"},
             {"role": "user", "content": "Thanks"}]
THINKING = [USER, {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"}, {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "<think>\nyes\n</think>\n\nYes."}]

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, answer with a JSON call.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length < 2 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

PHI4 = """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<|Assistant|>call' + tool['type'] + tool['function']['name']}}{%- set ns.is_first = true -%}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- if ns.is_tool %}{{'<|outputs_end|>' + message['content'] + '<|eos|>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + '<|eos|>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<|output|>' + message['content']}}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|outputs_end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|><think>\\n'}}{% endif %}"""

SMOLLM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

SMOLLM3 = """{%- if enable_thinking is not defined -%}
{%- set enable_thinking = true -%}
{%- endif -%}
{%- if enable_thinking -%}{%- set reasoning_mode = "/think" -%}{%- else -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- if "/system_override" in system_message -%}
  {{- custom_instructions.replace("/system_override", "").rstrip() -}}
{%- else -%}
  {{- "## Metadata\\n\\nReasoning Mode: " + reasoning_mode + "\\n\\n" -}}
  {%- if custom_instructions -%}{{- custom_instructions + "\\n\\n" -}}{%- endif -%}
  {%- if xml_tools or python_tools or tools -%}
    {{- "### Tools\\n\\n" -}}
    {%- if xml_tools or tools -%}
      {%- if tools -%}{%- set xml_tools = tools -%}{%- endif -%}
      {%- set ns = namespace(xml_tool_string="<tools>\\n") -%}
      {%- for tool in xml_tools[:] -%}
        {%- set ns.xml_tool_string = ns.xml_tool_string ~ (tool | string) ~ "\\n" -%}
      {%- endfor -%}
      {%- set xml_tool_string = ns.xml_tool_string + "</tools>" -%}
      {{- xml_tool_string -}}
    {%- endif -%}
  {%- endif -%}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}
    {{ "<|im_start|>" + message.role + "\\n" + content + "<|im_end|>\\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {%- if reasoning_mode == "/think" -%}
      {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
    {%- else -%}
      {{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
    {%- endif -%}
    {% endgeneration %}
  {%- elif message.role == "tool" -%}
    {{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""

COMMAND_R = """{{ bos_token }}{% macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "List[" +  json_to_python_type(json_spec.items) + "]"}}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
    {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}
{%- macro render_extra_keys(json_dict, handled_keys) -%}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is mapping or (json_dict[json_key] is sequence and json_dict[json_key] is not string) %}
                {{- '\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{-'\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | string) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro -%}
{%- for tool in tools %}
    {{- '\\n\\ndef ' + tool.function.name + '(' }}
    {%- for param_name, param_fields in tool.function.parameters.properties|items %}
        {{- param_name + ": "}}
        {%- if not param_name in tool.function.parameters.required %}
            {{- 'Optional[' + json_to_python_type(param_fields) + '] = None'}}
        {%- else %}
            {{- json_to_python_type(param_fields) }}
        {%- endif %}
        {{- render_extra_keys(param_fields, ['type', 'description']) }}
        {%- if not loop.last %}
            {{- ", "}}
        {%- endif %}
    {%- endfor %}
    {{- ") -> List[Dict]:\\n    '''"}}
    {{- tool.function.description|indent(4, true) }}
    {%- if tool.function.parameters.properties|length != 0 %}
        {{- "\\n\\n    Args:\\n        "}}
        {%- for param_name, param_fields in tool.function.parameters.properties|dictsort %}
            {{- param_name ~ " (" ~ json_to_python_type(param_fields) ~ "): " ~ param_fields.description|default('none', true)|trim }}
        {%- endfor %}
    {%- endif %}
    {{- "'''" }}
{%- endfor %}"""

ZEPHYR = """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"""

VICUNA = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'].strip() %}{% else %}{% set loop_messages = messages %}{% set system_message = 'A chat.' %}{% endif %}{{ bos_token + system_message }}{% for message in loop_messages %}{% if message['role'] == 'user' %}{{ ' USER: ' + message['content'].strip() }}{% elif message['role'] == 'assistant' %}{% generation %}{{ ' ASSISTANT: ' + message['content'].strip() + eos_token }}{% endgeneration %}{% endif %}{% endfor %}"""

GRANITE = """{%- macro block(message) -%}
    <|{{ message.role }}|>{% if message.content %}{{ message.content }}{% endif %}
{%- endmacro -%}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {%- if loop.index > 4 %}{% break %}{% endif %}
{{ block(message) }}
{# a comment #}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {%- set text = message.content | default('', true) %}
        {%- for line in text.split(' ') %}
            {%- set mark = loop.index ~ '/' ~ loop.length %}
            {{- mark }}:{{ line }}
        {%- endfor %}
        {%- endgeneration %}
    {%- endif %}
{% endfor %}
"""

CHATS = {"plain": CHAT, "without system": CHAT[1:], "tools": TOOL_CHAT, "tools without system": TOOL_CHAT[1:],
         "thinking": THINKING, "two users": [USER, USER]}
STYLES = {
    "llama3": (LLAMA3, ["plain", "tools"]), "qwen3": (QWEN3, ["plain", "tools", "thinking"]),
    "mistral": (MISTRAL, ["plain", "tools without system"]), "gemma": (GEMMA, ["plain", "two users"]),
    "phi4": (PHI4, ["plain"]), "deepseek": (DEEPSEEK, ["plain", "thinking", "tools"]),
    "smollm": (SMOLLM, ["without system"]), "smollm3": (SMOLLM3, ["plain", "tools"]),
    "command-r": (COMMAND_R, ["plain"]), "zephyr": (ZEPHYR, ["plain"]), "vicuna": (VICUNA, ["plain"]),
    "granite": (GRANITE, ["plain", "tools"]),
}

# One expression or block each; `x` is what a template may hold.
SNIPPETS = """
{{ none }}|{{ true }}|{{ false }}|{{ None }}|{{ True }}|{{ missing }}|{{ messages[0].missing }}|
{{ 1 }} {{ 1.0 }} {{ 1e21 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ 2 ** 3 }} {{ 2 ** -1 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 123456789012345678901234567890 }}
{{ [1, 2.5, 'a', none, true, "it's", 'q"q', 'both \\'"'] }} {{ {'a': 1, 'b': [none], 3: 'x'} }} {{ (1, 2) }} {{ (1,) }} {{ [] }} {{ {} }} {{ () }}
{{ 'é\\n\\t\\x00🦆' }} {{ ['é\\n\\t\\\\ \\x07🦆'] }} {{ ['\\u200b\\u00a0'] }}
{{ 'a' ~ 1 ~ none ~ true ~ missing ~ 1.5 ~ [1] }}
{{ 'a' + 'b' }} {{ [1] + [2] }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ (1,) + (2,) }}
{{ 'a' + 1 }}
{{ missing.other }}
{{ missing['x'] }}
{{ messages[0]['missing'] is defined }} {{ messages[99] is defined }} {{ missing is defined }} {{ none is defined }} {{ missing is none }} {{ none is none }} {{ missing is undefined }}
{{ missing == none }} {{ missing == '' }} {{ missing == other }} {{ none == '' }} {{ not missing }} {{ missing or 'd' }} {{ missing and 'd' }}|
{{ missing + 'a' }}
{{ missing ~ 'a' }} {{ missing|length }} {{ missing|list }} {{ missing|string }}| {{ missing|trim }}| {{ missing|upper }}|{{ missing|first }}|{{ missing|join(',') }}|
{{ none|length }}
{{ none|string }} {{ none|trim }} {{ none|upper }} {{ none|default('d') }} {{ none|default('d', true) }} {{ ''|default('d') }} {{ ''|default('d', true) }} {{ missing|default('d') }} {{ missing|default }}| {{ 0|default(5, boolean=true) }} {{ missing|d('x') }}
{{ missing|default(default_value='z') }} {{ missing|tojson }}
{{ tools|tojson }}
{{ tools|tojson(indent=2) }}
{{ tools[0].function|tojson(indent=4) }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ [[], {}]|tojson(indent=1) }}
{{ tools[0]|tojson(ensure_ascii=true) }}
{{ tools[0]|tojson(ensure_ascii=True, sort_keys=True) }}
{{ tools[0]|tojson(separators=(',', ':')) }} {{ tools[0]|tojson(indent=2, separators=(',', ': ')) }} {{ tools[0]|tojson(false, 2) }}
{{ tools[0]|tojson(indent='--') }} {{ [1, [2]]|tojson(indent=0) }} {{ [1]|tojson(indent=none) }} {{ {'b': 1, 'a': {'d': 2, 'c': 3}}|tojson(sort_keys=true) }} {{ [1]|tojson(indent=true) }} {{ [1]|tojson(indent=-1) }}
{{ '🦆é'|tojson(ensure_ascii=true) }} {{ 1.0|tojson }} {{ 1e21|tojson }} {{ 1e-7|tojson }} {{ 0.1|tojson }} {{ true|tojson }} {{ none|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 2}|tojson }} {{ (1, 2)|tojson }} {{ 1e400|tojson }} {{ 1e16|tojson }} {{ 123456789012345678|tojson }}
{{ messages|tojson }}
{{ messages|map(attribute='role')|join(', ') }} {{ messages|map(attribute='nope', default='-')|join }} {{ messages|map('length')|list }} {{ ['a', 'b']|map('upper')|join(d='+') }} {{ messages|map(attribute='content')|map('trim')|list }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ messages|selectattr('role', '==', 'user')|map(attribute='content')|first }} {{ messages|rejectattr('role', 'eq', 'user')|list|length }} {{ messages|selectattr('content')|list|length }} {{ messages|selectattr('role', 'in', ['user', 'system'])|list|length }} {{ messages|selectattr('tool_calls', 'defined')|list|length }} {{ [1, 2, 3]|select('odd')|list }} {{ [1, 0, none]|reject|list }} {{ [1, 2, 3]|reject('>', 2)|list }}
{{ messages|map(attribute='role')|list }} {{ messages|map(attribute='role')|unique|list }} {{ messages|groupby('role')|length }} {% for role, all in messages|groupby('role') %}{{ role }}:{{ all|length }} {% endfor %}
{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A', 'c']|sort(case_sensitive=true) }} {{ [1, 2]|sort(reverse=true) }} {{ messages|sort(attribute='role')|map(attribute='role')|list }} {{ {'b': 1, 'a': 2}|dictsort }} {{ {'b': 1, 'a': 2}|dictsort(by='value') }} {{ {'b': 1, 'a': 2}|dictsort(false, 'value', true) }} {{ {'B': 1, 'a': 2}|dictsort(true) }}
{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 'x')|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }} {{ [1, 2]|sum }} {{ messages|sum(attribute='x', start=3) if false }} {{ [1, 2]|min }} {{ [1, 2]|max }} {{ [1, 2]|first }} {{ [1, 2]|last }} {{ []|first }}| {{ 'abc'|first }} {{ 'abc'|last }} {{ 'abc'|list }} {{ {'a': 1}|list }} {{ 'abc'|reverse }} {{ [1, 2]|reverse|list }} {{ 'abc'|length }} {{ {'a': 1}|length }} {{ 'abc'|count }}
{{ {'a': 1, 'b': 2}|items|list }} {% for k, v in {'a': 1}|items %}{{ k }}={{ v }}{% endfor %} {% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 'c') }} {{ missing|items|list }}
{{ {'items': 1}['items'] }} {{ {'get': 1}.get('get') }} {{ {'items': {'a': 1}, 'keys': 2}.items()|list }} {{ {'items': 1, 'keys': 2}.keys()|list }}
{{ ' a b '|trim }}| {{ 'xxaxx'|trim('x') }} {{ 'a,b'|replace(',', ';') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'aaa'|replace('a', 'b', count=1) }} {{ 'hello world'|title }} {{ 'hELLO'|capitalize }} {{ "they're bill's"|title }} {{ 'a b c'|wordcount }} {{ 'ab'|center(6) }}| {{ 'abcdef'|truncate(5) }} {{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true, '~', 0) }}
{{ 'a\\nb\\n\\nc'|indent }}| {{ 'a\\nb'|indent(2) }}| {{ 'a\\nb'|indent(2, true) }}| {{ 'a\\n\\nb'|indent(2, blank=true) }}| {{ 'a\\nb'|indent(width=2, first=true) }}| {{ 'a\\nb'|indent('> ') }}| {{ 'a\\nb\\n'|indent(2) }}|
{{ '3'|int }} {{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '0x1f'|int(base=16) }} {{ 3.7|int }} {{ none|int }} {{ '3.5'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ true|int }} {{ ' 4 '|int }} {{ '1_000'|int }}
{{ 42.55|round }} {{ 42.55|round(1) }} {{ 42.55|round(1, 'floor') }} {{ 42.4|round(method='ceil') }} {{ 42|round }} {{ 2.5|round }} {{ 3.5|round|int }} {{ -2|abs }} {{ 1234.5|round(-2) }} {{ 1234|round(-2) }}
{{ '%s is %d or %.2f'|format('a', 3, 2.5) }} {{ '{} {x}'.format(1, x='y') }} {{ '{:>5}|{:.2f}'.format('a', 1.5) }} {{ '%(a)s'|format(a='b') }}
{{ 'a-b-c'.split('-') }} {{ ' a  b '.split() }} {{ 'a-b-c'.split('-', 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 'a\\nb\\r\\nc\\n'.splitlines() }} {{ 'a-b'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'a'.join(['x', 'y']) }} {{ 'aXbX'.count('X') }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.index('b') }} {{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.startswith('b', 1) }}
{{ ' a '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xax'.strip('x') }} {{ 'abc'.upper() }} {{ 'ABC'.lower() }} {{ 'abc def'.title() }} {{ 'abc'.capitalize() }} {{ 'aBc'.swapcase() }} {{ 'a'.center(5, '*') }} {{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3) }} {{ '7'.zfill(3) }} {{ 'prefix_a'.removeprefix('prefix_') }} {{ 'a.txt'.removesuffix('.txt') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ 'ß'.casefold() }} {{ 'a\\tb'.expandtabs(4) }}
{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ '12'.isnumeric() }} {{ '12'.isdecimal() }} {{ 'a1'.isalnum() }} {{ 'a'.islower() }} {{ 'A'.isupper() }} {{ ' '.isspace() }} {{ 'Ab Cd'.istitle() }} {{ 'ab'.isidentifier() }} {{ 'a'.isascii() }}
{{ "they're o'neil".title() }}
{{ [1, 2, 1].count(1) }} {{ [1, 2].index(2) }} {{ {'a': 1}.copy() }} {{ [1, 2].copy() }} {{ (1, 2).count(1) }}
{{ [1].append(2) }}
{{ {'a': 1}.update({'b': 2}) }}
{{ messages[1:]|length }} {{ messages[:-1]|length }} {{ messages[::-1][0].role }} {{ messages[-1].role }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ 'abcdef'[::2] }} {{ 'abc'[0] }} {{ 'abc'[-1] }} {{ 'äöü'[1] }} {{ [1, 2, 3][1:][0] }} {{ 'abc'[5:] }}| {{ 'abc'[5] }}|
{{ 'a' in 'abc' }} {{ 'a' not in 'abc' }} {{ 1 in [1] }} {{ 'a' in {'a': 1} }} {{ none in [none] }} {{ 'role' in messages[0] }} {{ '' in 'a' }}
{{ 'x' in missing }}
{{ 1 < 2 < 3 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ [1] == [1] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1.0} }} {{ 1 != 2 }} {{ not 1 }} {{ 1 and 0 }} {{ 0 or '' }}| {{ [] or 'e' }} {{ 1 if true }} {{ 1 if false }}| {{ 1 if false else 2 }}
{{ 'a' is string }} {{ 1 is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ true is number }} {{ true is integer }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 'a' is sequence }} {{ {} is mapping }} {{ {} is sequence }} {{ [] is sequence }} {{ [] is mapping }} {{ none is string }} {{ missing is string }} {{ 3 is odd }} {{ 4 is even }} {{ 4 is divisibleby(2) }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is eq 1 }} {{ 1 is sameas 1 }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 'a' is in 'abc' }} {{ range is callable }} {{ 1 is iterable }} {{ none is iterable }} {{ missing is iterable }} {{ missing is mapping }} {{ 'x' is not none }} {{ messages is iterable }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}
{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }} {{ loop.previtem }} {{ loop.nextitem }} {{ loop.cycle('a', 'b') }} {{ loop.changed(i // 2) }};{% else %}none{% endfor %}
{% for i in [] %}x{% else %}none{% endfor %} {% for i in missing %}x{% else %}none{% endfor %} {% for c in 'abc' %}{{ c }}{% endfor %} {% for k in {'a': 1} %}{{ k }}{% endfor %} {% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %} {% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% endfor %}
{% for i in 5 %}x{% endfor %}
{% set x = 1 %}{% for i in range(2) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }} {% set ns = namespace(x=1) %}{% for i in range(2) %}{% set ns.x = ns.x + 1 %}{% endfor %}{{ ns.x }} {% if true %}{% set y = 2 %}{% endif %}{{ y }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% set z %}text {{ x }}{% endset %}{{ z }} {% set w | upper %}loud{% endset %}{{ w }} {% with q = 3 %}{{ q }}{% endwith %}{{ q }}
{% set ns = namespace({'a': 1}) %}{{ ns.a }} {% set ns.b = [] %}{{ ns.b }} {{ ns.nope }}| {% set ns = namespace(items=[]) %}{% for m in messages %}{% set ns.items = ns.items + [m.role] %}{% endfor %}{{ ns.items }}
{% macro f(a, b=2, *c) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}
{% macro f(a, b=2) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}{{ f(a=5) }}{{ f() }}{% set c = 1 %}{{ f(1) }} {% macro g() %}{{ caller() }}{% endmacro %}{% call g() %}in{% endcall %} {% macro h(x) %}{% if x > 0 %}{{ x }}{{ h(x - 1) }}{% endif %}{% endmacro %}{{ h(3) }} {{ f(1)|length }} {{ f(1) + 'x' }} {{ f(1) is string }} {{ f(1)|tojson }}
{% filter upper %}abc{% endfilter %} {% raw %}{{ x }}{% endraw %} {# comment #}x {%- if true -%} y {%- endif %} {% if false %}a{% elif true %}b{% else %}c{% endif %} {%+ if true %}p{% endif %}
  {% if true %}
  a
  {% endif %}
b
{{ 'x' }}
  {{- 'y' -}}
c   
  {#- d -#}  
e
{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% generation %}{% set c = 'in' %}{{ c }}{% endgeneration %}{{ c }}|
{% set c = 'out' %}{% generation %}{{ c }}{% set c = c ~ '+' %}{{ c }}{% endgeneration %}{{ c }}
{% for m in messages %}{% set c = m.content %}{% generation %}{% set c = c|trim %}{% if m.role == 'user' %}{% set c = c ~ '!' %}{% endif %}{{ c }}{% for w in c.split() %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endgeneration %}[{{ c }}]{% endfor %}
{% set ns = namespace(n=0) %}{% for m in messages %}{% generation %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.role }}{% endgeneration %}{% endfor %}{{ ns.n }}
{%- generation -%}  a  {%- endgeneration -%}  b {% generation -%} c {%- endgeneration %}
{% set generation = 5 %}{{ generation }} {{ '{% generation %}' }} {# {% generation %} #} {% raw %}{% generation %}{% endraw %}
{% macro m(x) %}{% generation %}{{ x }}{% endgeneration %}{% endmacro %}{{ m('a') }}
{% if true %}{% generation %}a{% endgeneration %}{% endif %}{% generation %}{% if false %}b{% else %}{% set k = 4 %}c{{ k }}{% endif %}{% endgeneration %}{{ k }}
{{ raise_exception('no') }}
{{ strftime_now('%Y')|length }} {{ strftime_now('%d %B %Y')|length > 5 }}
{{ dict(a=1, b=2) }} {{ dict({'a': 1}, b=2) }} {{ dict([('a', 1)]) }} {{ range(5)|list }} {{ range(1, 5)|list }} {{ range(0, 10, 3)|list }} {{ range(5, 0, -2)|list }} {{ range(3)[1] }} {{ range(3)|length }} {% set j = joiner(', ') %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}
{{ 'a'|e }} {{ '<a>'|e }} {{ '<a>'|escape }} {{ '<a>'|safe }} {{ '<b>x</b>'|striptags }} {{ ['<a>', 'b']|join('&') }}
{{ '<a>'|safe ~ '<b>' }} {{ ('<a>'|safe)|tojson }} {{ '<a>'|e ~ '<b>' }}
{{ '<a>'|safe|upper }} {{ '<a>'|safe|replace('a', '<') }}
{{ 'a'  'b' }} {{ "x" "y" }}
{{ [1, 2, 3]|join(' ')|upper }} {{ (1, 2)|join }} {{ [[1], [2]]|map('first')|list }} {{ [['a', 1]]|map(attribute=0)|list }} {{ [{'a': {'b': 1}}]|map(attribute='a.b')|list }} {{ ['1', '2']|map('int')|sum }} {{ ['ab']|map('replace', 'a', 'x')|list }} {{ [1, none]|map('default', 0, true)|list }}
{{ messages[0].content.strip().upper() }} {{ (messages|last).role }} {{ messages[0]['role'].upper()[0] }} {{ (messages[0].content|trim).split('.')|first }} {{ messages[0].keys()|list }} {{ 'content' in messages[0] and messages[0].content is not none }}
{{ x.y.z is defined }}
{{ messages[0].x.y is defined }}
{{ messages|length }} {{ messages[0] }} {{ messages[1].content.items is defined }} {{ messages[0].role.foo is defined }} {{ messages[0].get('nope', 'd') }} {{ tools is defined }} {{ tools is none }} {{ documents is defined }} {{ documents is none }} {{ tools }}
{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ pad_token is defined }}{{ add_generation_prompt }} {{ bos_token is defined }} {{ enable_thinking is defined }}
{{ bos_token + eos_token }} {{ unk_token ~ 'a' }} {% if bos_token %}y{% endif %}
{{ true and missing is not defined }} {{ (missing|default([]))|length }} {{ missing|default([], true)|length }} {{ (missing or []) + [1] }} {{ none or 'x' }} {{ missing.x|default('d') if missing else 'e' }}
{{ 1.5|string }} {{ [1.0]|string }} {{ true|string }} {{ {'a': none}|string }} {{ 10 ** 20 }} {{ 1/3 }} {{ 0.1 + 0.2 }} {{ 100000000000000000.0 }} {{ 1e100 }} {{ -0.0 }} {{ 5 % 3 }} {{ 5.5 // 2 }} {{ 2 * 3.0 }} {{ 4 / 2 }} {{ 10 // 3 }} {{ 1.0e10 }}
{{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 'a' if 'b' else 'c' }} {{ [x for x in [1]] if false }}
{{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {1: 'x'}[1] }} {{ {'a': 1}['b'] }}| {{ [1, 2][-1] }} {{ [1][5] }}| {{ [[1, 2]][0][1] }} {{ {'a': [1]}.a[0] }} {{ [1, 2].0 }} {{ 'abc'.0 }}|
{{ '\\n'.join(['a', 'b']) }} {{ '\\n' in 'a\\nb' }} {{ 'a\\\\b' }} {{ "\\"" }} {{ '\\'' }} {{ '\\u00e9' }} {{ '\\x41' }} {{ '\\101' }} {{ '\\q' }} {{ '\\
' }}
{% if messages|map(attribute='role') %}y{% endif %} {% if [] %}n{% endif %} {% if [0] %}y{% endif %} {% if {} %}n{% endif %} {% if '' %}n{% endif %} {% if 0.0 %}n{% endif %} {% if ' ' %}y{% endif %} {% if none %}n{% endif %} {% if range(0) %}n{% endif %}
{% do [1] %}
{% import 'x' as y %}
{% include 'x' %}
{% block a %}in block{% endblock %} {{ self.a() }}
{% extends 'x' %}
{% autoescape true %}{{ '<a>' }}{% endautoescape %}
{{ 'abc'|nope }}
{{ 'abc' is nope }}
{{ nope() }}
{{ 'abc'.nope() }}
{{ 'abc'.nope }}|
{{ messages[0].content.__class__ }}|
{{ ''.__class__.__mro__ }}
{{ loop is defined }} {{ namespace is defined }} {{ range is defined }} {{ raise_exception is defined }} {{ strftime_now is defined }} {{ debug is defined }} {{ generation is defined }} {{ messages is sequence }}
a\\nb{{ "c\\nd" }}
{{ tools[0].function.parameters.properties.keys()|list|join(',') }} {{ tools[0].function.parameters.properties.items()|list|length }} {% for name, p in tools[0].function.parameters.properties.items() %}{{ name }}:{{ p.type }}{% if not loop.last %},{% endif %}{% endfor %} {{ tools[0]['function']['parameters']['properties']['days'] }}
{{ tools|map(attribute='function')|map(attribute='name')|list }} {{ tools|map(attribute='function.name')|join(' or ') }} {{ tools|selectattr('function.name', 'equalto', 'now')|list|length }} {{ tools | string }}
{{ messages|list|tojson|length }} {{ messages|first|tojson }} {{ (messages|first).role|tojson }} {{ messages[0]|dictsort }} {{ messages[0].items()|list }} {{ messages[0]|items|list }} {{ messages[0]|string }}
{{ '%s-%d' % ('a', 3) }} {{ '%s' % 'x' }} {{ '%5.2f|%-5s|%05d|%+d|%x|%X|%o|%e|%%' % (1.234, 'a', 42, 7, 255, 255, 8, 12345.678) }} {{ '%(a)s' % {'a': 1} }} {{ '%s' % [1, 'a'] }} {{ '%s %s' % ('a',) }} {{ '%d' % 'a' }} {{ 'a' % 1 }} {{ '%s' % (1.0,) }} {{ '%s' % none }} {{ '%s' % true }} {{ '%.2s' % 'abc' }} {{ '%s' % messages[0].role|upper + '!' }} {{ 'a' ~ '%s' % messages|length }} {{ '%s' % {'a': 1} }} {{ '%s|' % missing }} {{ 7 % 3 }} {{ '%g' % 0.0001 }}
{{ +1 }} {{ 2 + +3 }} {{ [1, +2] }} {{ +'a' }} {{ - -1 }} {{ 1 - +1 }} {{ 'a' + 'b' if +1 else 'c' }}
{% set x = +1 %}{{ x }}{% if +x == 1 %}y{% endif %}
{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}x
{% macro f(kwargs) %}{{ kwargs }}{% endmacro %}{{ f(1) }}{% set varargs = 2 %}{{ varargs }}
{{ (messages[0]).self }}| {{ {'kwargs': 1}.kwargs }} {{ kwargs }}|
{{ "\\/" }} {{ 'a\\/b' }} {{ '\\\\/' }} {{ '<\\/think>' in '</think>' }} {{ 'x'.replace('x', '\\/') }}
{% set c = cycler('a', 'b') %}{{ c.current }}{{ c.next() }}{{ c.current }}{% set x = c.reset() %}{{ c.current }}{% for i in range(3) %}{{ c.next() }}{% endfor %}
{{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 'x', 'b': 2.0}.values() }} {{ 'a' ~ {'a': 1}.keys() }} {{ {'a': 1}.keys()|length }} {{ 'a' in {'a': 1}.keys() }} {{ {'a': 1}.items()|list }} {{ {'b': 1}.keys()|first }} {{ {'b': 1, 'a': 2}.keys()|sort }} {{ {'a': 1, 'b': 2}.keys()|join(',') }} {{ {'a': 1}.items()|tojson }} {{ {'a': 1}.keys() is iterable }} {{ {'a': 1}.keys() is sequence }} {{ {'a': 1}.keys() is mapping }} {{ 'y' if {}.items() else 'n' }} {{ {'a': 1}.items()|map('first')|list }} {{ messages[0].items()|string }}
{% for k in {'a': 1, 'b': 2}.keys() %}{{ k }}{{ loop.last }}{% endfor %}{% for v in {'a': 1}.values() if v > 0 %}{{ v }}/{{ loop.length }}{% endfor %}
{{ 'a' ~ 1e20 }} {{ 'a' ~ 1e16 }} {{ 1e-7 ~ 'a' }} {{ 2 * 1e20 ~ '' }} {{ [1e20] ~ 'x' }} {{ 'a' ~ ['b', none, true] ~ {'c': "d'"} }} {{ 'x' ~ messages[0] }} {{ ('a' ~ 1.5) ~ (2 ~ [3.0]) }} {{ 'a' ~ 2 + 1 }} {{ -1 ~ 'a' }} {{ 1 - 1 ~ 'x' }} {{ missing ~ none ~ 'a' }} {{ ('<a>'|safe) ~ ['b'] }}
{% for x in none %}a{% endfor %}
{% for x in none %}a{% else %}b{% endfor %}
{% for x in messages[0].missing %}a{% else %}b{% endfor %}
{% for x in messages[0].content and none %}a{% endfor %}
{% for x in [3, 1]|sort if x < 3 %}{{ x }}{% endfor %}{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% for x in 'a' ~ 'b' %}{{ x }}.{% endfor %}{% for x in (1, 2) %}{{ x }}{% endfor %}
{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}
{{ 1 < 'a' }} {{ none < 1 }} {{ missing < 1 }} {{ 1 > missing }} {{ 'a' >= none }} {{ [1] < [2] }} {{ (1, 2) < (1, 3) }} {{ true < 2 }} {{ {'a': 1} < {'b': 1} }} {{ 1 <= 1.0 }} {{ 'a' < 'b' and 2 > 1 }} {{ not 1 > 2 }} {{ 1 if 2 >= 3 else 4 }} {{ [1 < 2, 3 > 4] }} {{ {'k': 1 < 2} }} {{ (1 < 2) == true }} {{ 'abc'|length > 2 }} {{ 1 + 1 < 3 - 0 }} {{ messages|length<5 }} {{ [1] < (1,) }} {{ range(3)|length <= 3 }} {{ 1 < 2 < 3 > 2 }}
{% set a = 1 < 2 %}{{ a }}{% if messages|length > 1 and not messages|length < 1 %}y{% elif 1 > 2 %}n{% endif %}{% for m in messages if loop is not defined or 1 < 2 %}{{ m.role[0] }}{% endfor %}
{{ range(3)|tojson }} {{ [range(3)]|tojson }} {{ range(3) }} {{ range(1, 9, 2) }} {{ range(5, 0, -1) }} {{ range(4)[-1] }} {{ range(3) is sequence }} {{ range(5)[1:3]|list }} {{ range(3)|first }} {{ range(2) ~ 'a' }} {{ 2 in range(3) }} {{ range(0)|length }} {{ range(3)|last }} {{ range(200000)|length }} {{ messages[1:]|tojson }} {{ messages[::-1]|tojson }} {{ 'a b'.split()|tojson }} {{ {'b': 1}|dictsort|tojson }} {{ [2, 1]|sort|tojson }} {{ range(3)|list|tojson }} {{ messages|map(attribute='role')|list|tojson }} {{ ['a']|batch(1)|list|tojson }} {{ messages|selectattr('role', 'eq', 'user')|list|tojson }} {{ 'a\\nb'.splitlines()|tojson }} {{ {'a': 1}.copy()|tojson }} {{ ([1] + [2])|tojson }} {{ ([1] * 2)|tojson }} {{ messages[1:] }} {{ messages[::2] }} {{ 'a,b'.split(',') ~ '' }}
{{ none|list }} {{ none|join }} {{ none|first }} {{ none|last }} {{ none|sort }} {{ none|reverse }} {{ none|unique|list }} {{ none|sum }} {{ none|max }} {{ none|batch(2)|list }} {{ none|dictsort }} {{ none|items|list }} {{ none|map('upper')|list }} {{ none|selectattr('a')|list }} {{ [1, 'a']|sort }} {{ [1, 'a']|max }} {{ [none, 1]|sort }} {{ 'a' in none }} {{ 1 in 5 }} {{ none + 1 }} {{ 1 + '1' }} {{ 'a' * 'b' }} {{ - 'a' }} {{ 'a'.join(none) }} {{ ', '.join([1]) }} {{ none.x }} {{ none['x'] }} {{ 1|length }} {{ 'abc'.startswith(1) }}
{% include 'x' ignore missing %}
{% include 'x' ignore missing with context %}
{{ {'a': 1}|attr('a') }}| {{ {'a': 1}|attr('b')|default('c') }} {{ messages[0]|attr('role') is defined }}
{% set ns = namespace(a=1) %}{{ ns|attr('a') }}{% for i in [1] %}{{ loop|attr('index') }}{% endfor %}
{{ 3 is gt 2 }} {{ 3 is ge(3) }} {{ 'a' is ne 'b' }} {{ 3 is lessthan 4 }} {{ [1, 2, 3]|select('greaterthan', 1)|list }} {{ ['a', 1]|select('string')|list }}
{{ 'a b'|wordcount }} {{ 'x'|default(y)|length }} {{ [3, 1]|sort|first }} {{ 'b,a'.split(',')|sort|join('-') }} {{ 'A'|lower }}{{ 'abc'|upper|lower }}
{{ not missing is defined }} {{ not (missing is defined) }} {{ missing is not defined }} {{ 2 + 3 * 4 }} {{ (2 + 3) * 4 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ - 3 }} {{ 'a' ~ 'b' == 'ab' }} {{ 1 + 1 ~ 'x' }} {{ 'a' ~ 1 + 1 }} {{ not true == false }} {{ 'a' in 'abc' and not 'z' in 'abc' }} {{ 1 if 1 else 2 if 2 else 3 }} {{ 'x'|upper ~ 'y' }} {{ 'a' + 'b'|upper }} {{ -1|abs }}
{{ 1 in 'a1' }} {{ '1' in 'a1' }} {{ none in 'a' }} {{ true not in 'True' }} {{ missing in 'abc' }} {{ missing in ['a'] }} {{ 'a' in missing }} {{ 'a' in 5 }} {{ [1] in {'a': 1} }} {{ {} in {'a': 1} }} {{ (1,) in {'a': 1} }} {{ 1.0 in [1, 2] }} {{ true in [1] }} {{ 1 in 'a1' or true }} {{ true or 1 in 'a1' }} {{ not 1 in 'a1' }} {{ not 'b' in 'abc' }} {{ 'a' not in 'abc' and 1 in [1] }} {{ 'a' ~ 'b' in 'abc' }} {{ 'a' + 'b' in 'abc' }} {{ 1 + 1 in [2] }} {{ 'a' in 'abc'|upper }} {{ 1 is in 'a1' }} {{ 1 is not in [1] }} {{ 'a' is in 'abc' }} {{ [1]|select('in', '1')|list }} {{ [{'a': 'x'}]|selectattr('a', 'in', 'xyz')|list }} {{ ('a' in 'abc')|string }} {{ 'a' in ['a'] if 'b' in 'b' else 'c' in 5 }} {{ ['a' in 'abc', 1 in [2]] }} {{ {'k': 'a' in 'b'} }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 3 > 2 > 1 == 1 }} {{ 3 < 2 < 'a' }} {{ 1 < 'a' < 3 }} {{ 1 < missing < 3 }} {{ missing < 1 < 2 }} {{ 1 == 1 == 1 }} {{ 1 == 1 < 2 }} {{ 1 != 2 != 1 }} {{ (1 < 2) < 3 }} {{ 1 < (2 < 3) }} {{ 1 < 2 == true }} {{ 1 in [1] == true }} {{ 1 in [1] in [[1]] }} {{ 'a' in 'abc' in ['abc'] }} {{ 1 not in [2] != 3 }} {{ 0 < messages|length < 5 and not 5 < messages|length <= 9 }} {{ 1 is not none == true }} {{ 'a' is not none ~ 'b' }} {{ [1 < 2 < 3, 3 > 2 > 5] }} {{ 'y' if 'a' < 'b' < 'c' else 'n' }}
{% for x in [1, 2, 3] if x in [1, 3] %}{{ x }}{% endfor %}{% for x in 'ab' if 0 < 1 < 2 %}{{ x }}{% endfor %}{% set y = 1 in [1] %}{{ y }}{% if 'user' not in messages[0].role %}y{% elif 1 < 2 < 3 %}n{% endif %}
{{ (messages|map(attribute='role'))|length }} {{ (messages|map(attribute='role'))[0] }} {{ messages|map(attribute='role')|tojson }} {{ 'y' if messages|selectattr('role', 'eq', 'zzz') else 'n' }} {{ 'y' if messages|selectattr('role', 'eq', 'zzz')|list else 'n' }} {{ 'system' in messages|map(attribute='role') }} {{ messages|map(attribute='role') is sequence }} {{ messages|map(attribute='role') is iterable }} {{ messages|map(attribute='role')|sort }} {{ messages|map(attribute='role')|reverse }} {{ [2, 1]|reverse|list }} {{ [2, 1]|reverse|first }} {{ ([2, 1]|reverse)|length }} {{ range(3)|reverse|list }} {{ {'a': 1, 'b': 2}|reverse|list }} {{ messages|map(attribute='role')|unique|list }} {{ [1, 2, 3]|batch(2)|map('first')|list }} {{ [3, 1]|map('string')|max }} {{ messages|map(attribute='role')|join(',') }} {{ messages|groupby('role')|map('first')|list }} {{ messages|groupby('role') }} {{ namespace(a=1) }} {{ [1]|select is defined }} {{ [1]|select|sum }} {{ {'a': 1}|items|first }} {{ 'abc'|reverse }} {{ messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|list }} {{ [1, 2, 3]|slice(2)|list }} {{ [1, 2]|reject('odd')|first }}
{% set g = messages|map(attribute='role') %}{% for r in g %}{{ loop.index }}/{{ loop.length }}{{ r }}{{ loop.last }}{% endfor %}|{% for r in g %}{{ r }}{% endfor %}|{{ g|list }}
{% set g = [1, 2, 3]|select %}{{ g|first }}{{ g|list }}{{ g|list }}
""".strip("\n")


def snippets() -> list[str]:
    """A snippet ends with its line; the one with white space around its tags has several."""
    lines, out = SNIPPETS.split("\n"), []
    while lines:
        line = lines.pop(0)
        if line == "  {% if true %}":
            line = "\n".join([line, *lines[:9]])
            del lines[:9]
        elif line.endswith("'\\\\"):
            line += "\n" + lines.pop(0)
        out.append(line.replace("\\\\", "\\"))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    inner = Tokenizer(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, "a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")

    def case(name: str, template: str, chat: str, with_tools: bool, answer_next: bool) -> dict:
        try:
            text = tokenizer.apply_chat_template(
                CHATS[chat], tools=TOOLS if with_tools else None, chat_template=template,
                add_generation_prompt=answer_next, tokenize=False)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the text is an error
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            text = None
        return {"name": name, "template": template, "chat": chat, "tools": with_tools, "answer_next": answer_next,
                "text": text}

    cases = []
    for name, (template, chats) in STYLES.items():
        # Command R's iterates over its tools, and none is no list.
        for with_tools in [True] if name == "command-r" else [False, True]:
            cases += [case(name, template, chat, with_tools, answer) for chat in chats for answer in (False, True)]
    for number, snippet in enumerate(snippets()):
        is_plain = "{%" not in snippet and "\n" not in snippet and "'{" not in snippet
        parts = re.findall(r"{{.*?}}(?!})", snippet) if is_plain else [snippet]
        cases += [case(f"snippet {number}", part, "plain", True, True) for part in parts]
    made_by = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    head = {"made_by": made_by, "chats": CHATS, "tools": TOOLS}
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in cases)
    args.out.write_text(json.dumps(head, ensure_ascii=False)[:-1] + ', "cases": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
