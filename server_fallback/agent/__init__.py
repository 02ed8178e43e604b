"""Agents: a model that calls functions and tools of MCP servers until a task is done, as `@nearfar/web/agent` in the
page. `web/src/shared/agent` decides what a step may do.
"""

from .agent import Agent
from .events import (
    AgentCall,
    AgentResult,
    AgentStep,
    AskedCall,
    CallEnded,
    Calling,
    Ended,
    Reasoning,
    Routed,
    StepBegan,
    Text,
    Withdrawn,
)
from .tools import Allow, Tool, ToolSource, function_tool, mcp_tools

__all__ = [
    "Agent",
    "AgentCall",
    "AgentResult",
    "AgentStep",
    "Allow",
    "AskedCall",
    "CallEnded",
    "Calling",
    "Ended",
    "Reasoning",
    "Routed",
    "StepBegan",
    "Text",
    "Tool",
    "ToolSource",
    "Withdrawn",
    "function_tool",
    "mcp_tools",
]
