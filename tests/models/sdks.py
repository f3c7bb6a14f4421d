# SPDX-License-Identifier: Apache-2.0
"""One tool loop, written for each of the published SDKs and frameworks, plain and streaming."""

import json
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import agents
import httpx2
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from anthropic import AsyncAnthropic
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponses
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

agents.set_tracing_disabled(True)  # it would send traces to its maker

Tool = Callable[..., Awaitable[Any]]
PROMPT = "What is the weather in Ulm?"
NAME = "gpt-test"
CLAUDE = "claude-test"


@dataclass
class Setting:
    """Where the model is, what it may call, and how it is asked."""

    origin: str
    tools: Sequence[Tool]
    is_streamed: bool = False
    http: httpx2.AsyncClient | None = None
    prompt: str = PROMPT

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, api_key="sk-secret", http_client=self.http)

    def anthropic(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.origin, api_key="sk-secret", http_client=self.http)

    def tool(self, name: str) -> Tool:
        return next(tool for tool in self.tools if tool.__name__ == name)


def schema(tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }


async def openai_chat(setting: Setting) -> str:
    client = setting.openai()
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.__name__,
                "description": tool.__doc__,
                "parameters": schema(tool),
            },
        }
        for tool in setting.tools
    ]
    messages: list[Any] = [{"role": "user", "content": setting.prompt}]
    while True:
        asked: Any = {"model": NAME, "messages": messages, "tools": tools}
        if setting.is_streamed:
            async with client.chat.completions.stream(**asked) as stream:
                async for _ in stream:
                    pass
                message = (await stream.get_final_completion()).choices[0].message
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
        if not message.tool_calls:
            return message.content or ""
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        for call in message.tool_calls:
            result = await setting.tool(call.function.name)(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


async def openai_responses(setting: Setting) -> str:
    client = setting.openai()
    tools = [
        {"type": "function", "name": tool.__name__, "parameters": schema(tool), "strict": False}
        for tool in setting.tools
    ]
    items: list[Any] = [{"role": "user", "content": setting.prompt}]
    while True:
        asked: Any = {"model": NAME, "input": items, "tools": tools}
        if setting.is_streamed:
            async with client.responses.stream(**asked) as stream:
                async for _ in stream:
                    pass
                response = await stream.get_final_response()
        else:
            response = await client.responses.create(**asked)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        for call in calls:
            items.append(
                {
                    "type": "function_call",
                    "call_id": call.call_id,
                    "name": call.name,
                    "arguments": call.arguments,
                }
            )
        for call in calls:
            result = await setting.tool(call.name)(**json.loads(call.arguments))
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": str(result)}
            )


async def anthropic_messages(setting: Setting) -> str:
    client = setting.anthropic()
    tools = [
        {"name": tool.__name__, "description": tool.__doc__, "input_schema": schema(tool)}
        for tool in setting.tools
    ]
    messages: list[Any] = [{"role": "user", "content": setting.prompt}]
    while True:
        asked: Any = {"model": CLAUDE, "max_tokens": 99, "messages": messages, "tools": tools}
        if setting.is_streamed:
            async with client.messages.stream(**asked) as stream:
                async for _ in stream.text_stream:
                    pass
                message = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked)
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in message.content if block.type == "text")
        used = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}
            for call in calls
        ]
        messages.append({"role": "assistant", "content": used})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": str(await setting.tool(call.name)(**call.input)),
            }
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


async def langchain(setting: Setting) -> str:
    llm = ChatOpenAI(
        model=NAME,
        base_url=setting.url,
        api_key="sk-secret",
        http_async_client=setting.http,
        streaming=setting.is_streamed,
    )
    graph = create_agent(llm, tools=list(setting.tools))
    asked: Any = {"messages": [{"role": "user", "content": setting.prompt}]}
    if setting.is_streamed:
        state: Any = None
        async for mode, part in graph.astream(asked, stream_mode=["messages", "values"]):
            if mode == "values":
                state = part
    else:
        state = await graph.ainvoke(asked)
    return str(state["messages"][-1].text)


async def _openai_agents(setting: Setting, model: Any) -> str:
    bound = [agents.function_tool(failure_error_function=None)(tool) for tool in setting.tools]
    agent = agents.Agent(name="a", model=model, tools=bound)
    if not setting.is_streamed:
        return str((await agents.Runner.run(agent, setting.prompt)).final_output)
    run = agents.Runner.run_streamed(agent, setting.prompt)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


async def openai_agents_chat(setting: Setting) -> str:
    return await _openai_agents(setting, OpenAIChatCompletionsModel(NAME, setting.openai()))


async def openai_agents_responses(setting: Setting) -> str:
    return await _openai_agents(setting, OpenAIResponsesModel(NAME, setting.openai()))


async def _pydantic_ai(setting: Setting, model: Any) -> str:
    agent = PydanticAgent(model, tools=list(setting.tools))
    if not setting.is_streamed:
        return str((await agent.run(setting.prompt)).output)

    async def watch(context: Any, events: AsyncIterable[Any]) -> None:
        async for _ in events:
            pass

    return str((await agent.run(setting.prompt, event_stream_handler=watch)).output)


def _openai_provider(setting: Setting) -> OpenAIProvider:
    return OpenAIProvider(base_url=setting.url, api_key="sk-secret", http_client=setting.http)


async def pydantic_ai_openai(setting: Setting) -> str:
    return await _pydantic_ai(setting, OpenAIChatModel(NAME, provider=_openai_provider(setting)))


async def pydantic_ai_responses(setting: Setting) -> str:
    return await _pydantic_ai(setting, PydanticResponses(NAME, provider=_openai_provider(setting)))


async def pydantic_ai_anthropic(setting: Setting) -> str:
    provider = AnthropicProvider(anthropic_client=setting.anthropic())
    return await _pydantic_ai(setting, AnthropicModel(CLAUDE, provider=provider))


LOOPS: list[Callable[[Setting], Awaitable[str]]] = [
    openai_chat,
    openai_responses,
    anthropic_messages,
    langchain,
    openai_agents_chat,
    openai_agents_responses,
    pydantic_ai_openai,
    pydantic_ai_responses,
    pydantic_ai_anthropic,
]
