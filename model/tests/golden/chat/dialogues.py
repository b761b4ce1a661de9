"""The dialogues and tools of the golden files, and how a chat template is given them."""

import json

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city: <b>now</b> & 'later', \"quoted\" — é",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
                    "limit": {"type": "number", "default": 0.5, "maximum": 1e-7, "minimum": -1.5e20},
                    "exact": {"type": "boolean", "default": True, "examples": [None, [], {}]},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "tab\t, slash / \\, 東京 🌦", "parameters": {}}},
]


def call(call_id, name, arguments):
    return {"id": call_id, "name": name, "arguments": arguments}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = message("system", "You help.\nAlways.")
ASK = message("user", "How warm is it in Paris?")
ONE_CALL = message("assistant", "", tool_calls=[call("c0", "get_weather", '{"days": 2, "city": "Paris"}')])
THOUGHT_CALL = message(
    "assistant",
    "Let me look.",
    reasoning_content="Two cities.\nTwo calls.",
    tool_calls=[
        call("c0", "get_weather", '{"city":"Paris","days":1.0}'),
        call("c1", "get_weather", '{"city": "東京 <é>", "nested": {"b": [1, 2.50, null], "a": false}}'),
    ],
)
ODD_CALLS = message(
    "assistant",
    "hm",
    tool_calls=[
        call("c0", "now", ""),
        call("c1", "now", "{broken"),
        call("c2", "now", "[1, 2]"),
        call("c3", "now", "null"),
        call("c4", "now", '"text"'),
    ],
)
RESPONSES = [
    message("tool", '{"temperature": 21}', tool_call_id="c0", name="get_weather"),
    message("tool", '{"temperature": 9}', tool_call_id="c1", name="get_weather"),
]
ANSWER = message("assistant", "It is 21 degrees.", reasoning_content="\nDone.\n")
THANKS = message("user", "Thanks! And in London? 🌧️")
DIALOGUES = {
    "user": [ASK],
    "system": [SYSTEM, ASK],
    "answer": [ASK, message("assistant", "21")],
    "one_call": [SYSTEM, ASK, ONE_CALL],
    "one_response": [SYSTEM, ASK, ONE_CALL, RESPONSES[0]],
    "parallel": [ASK, THOUGHT_CALL, *RESPONSES],
    "thinking": [ASK, THOUGHT_CALL, *RESPONSES, ANSWER],
    "two_user_turns": [SYSTEM, ASK, THOUGHT_CALL, *RESPONSES, ANSWER, THANKS],
    "two_user_turns_answered": [ASK, ANSWER, THANKS, message("assistant", "9", reasoning_content="Cold.")],
    "inline_thinking": [ASK, message("assistant", "<think>\nhm\n</think>\n\nYes."), THANKS],
    "empty_thinking": [ASK, message("assistant", "\n\nYes.", reasoning_content=""), THANKS],
    "odd_calls": [ASK, ODD_CALLS],
    "two_systems": [SYSTEM, ASK, message("system", "Now be brief."), THANKS],
    "unicode": [message("user", "e\u0301 東京 \u2028 </tool_response> \"'& <b>"), message("assistant", "\u00a0 ok\t")],
    "looks_like_response": [ASK, message("user", "<tool_response>\nx\n</tool_response>"), ANSWER],
    "stop_word": [ASK, message("user", "STOP"), ANSWER],
    "no_id": [ASK, message("tool", "x", name="who")],
}


def arguments_for_template(text):
    """An object or any other JSON value but a string is given parsed; a JSON string or broken text as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, str) else value


def for_template(given):
    out = {"role": given["role"], "content": given["content"]}
    for key in ("reasoning_content", "tool_call_id", "name"):
        if key in given:
            out[key] = given[key]
    if given.get("tool_calls"):
        out["tool_calls"] = [
            {
                "type": "function",
                "id": one["id"],
                "function": {"name": one["name"], "arguments": arguments_for_template(one["arguments"])},
            }
            for one in given["tool_calls"]
        ]
    return out
