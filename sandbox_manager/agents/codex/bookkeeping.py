"""Which records a Codex rollout holds that are no part of the model's history, and which are written by the CLI itself into it.

The model's history are the `response_item` records, and `compacted` ones, which replace what is above them. Everything else is the
user interface's history and accounts; it may come at any time, also after a turn: a command that went on writes its `item_completed`
when it ends, a resume with another model writes `thread_settings_applied` (both observed). The lists are short on purpose: a record
that is not in them is FOREIGN. `thread_rolled_back` is left out, since it takes turns off the history.

Kinds seen in rollouts of 0.171.0, and those that the program names for what these settings leave on.
"""

from __future__ import annotations

RECORDS = frozenset({"turn_context", "world_state", "token_usage_record"})
"""Record types beside `session_meta`, `response_item`, `compacted` and `event_msg`."""

EVENTS = frozenset(
    {
        "task_started",
        "task_complete",
        "turn_aborted",
        "thread_settings_applied",
        "token_count",
        "item_completed",
        "user_message",
        "agent_message",
        "agent_reasoning",
        "agent_reasoning_raw_content",
        "agent_reasoning_section_break",
        "context_compacted",
        "exec_command_end",
        "patch_apply_end",
        "mcp_tool_call_end",
        "web_search_end",
        "view_image_tool_call",
        "dynamic_tool_call_response",
        "error",
        "warning",
        "model_reroute",
    }
)
"""Types of `event_msg` payloads."""

TURN_ENDS = frozenset({"task_complete", "turn_aborted"})

USER_KIND = "user.text"
"""The kind of a user's own text among the `content_item_kinds` of a message with the role user."""

OWN_PROVENANCES = frozenset({"harness", "agents_md", "skills"})
"""Who else writes messages with the role user: the environment's description, the workspace's instruction file, the mark of an aborted
turn, a skill that the text named. They belong to a turn and are no prompt."""

TOOL_ITEMS = frozenset(
    {
        "additional_tools",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
        "image_generation_call",
    }
)
"""Response items that belong to a turn and are no text of user or assistant."""

CITATION = ("<oai-mem-citation>", "</oai-mem-citation>")
"""Markup that the CLI takes out of an assistant's text before it prints it, and leaves in the rollout (observed)."""
