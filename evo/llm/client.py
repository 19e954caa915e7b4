"""Asks endpoints that speak OpenAI's protocol, through the package `openai` (imported here only).

One attempt a call: the model queue retries, since each attempt is reserved, stored and settled by itself.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types.chat import ChatCompletion

from evo.core.errors import ConfigError
from evo.core.models import Bill, Model
from evo.core.text import plain, storable
from evo.llm.base import Failed, LlmError, Request
from evo.storage.model_calls import ModelAnswer

# Another attempt may succeed.  The codes after 500 are those of proxies: overloaded (529), closed (520 to 524).
_PASSING = {408, 409, 425, 429, *range(500, 600)}
# A gateway sends these of them when it waited in vain: the model behind it may have answered, and billed.
_UNKNOWN_BILL = {408, 499, 502, 504, 520, 522, 524}
NOTHING = Bill(0, 0, 0.0)
# Quota that is used up is reported as 429, but waiting does not help.
_NO_QUOTA = "insufficient_quota"
# A prompt that does not fit, in the words of OpenAI and vLLM ("maximum context length"), of SGLang ("longer than the
# model's context length") and of llama.cpp ("exceeds the available context size").
_TOO_LONG = re.compile(r"context[ _](length|size|window)", re.IGNORECASE)
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_MESSAGE_CHARACTERS = 500
PROBE_S = 20.0


class EndpointProvider:
    """Asks one model at one endpoint."""

    paid = True

    def __init__(self, model: Model, key: str) -> None:
        self._model, self._key = model, key
        # The older name comes first: servers that know only the newer one refuse it.  The others would ignore the newer
        # one, and an answer without a limit breaks the budget.
        self._limit = "max_tokens"
        given = {
            "temperature": model.temperature,
            "reasoning_effort": model.reasoning_effort,
            "stream_options": {"include_usage": True} if model.stream else None,
        }
        self._optional = {name: value for name, value in given.items() if value is not None}
        # A connection for each request: a server may close a kept one just when the next request is sent, and whether
        # that request was billed cannot be known.  A handshake costs little beside an answer.
        self._client = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=model.endpoint,
            timeout=model.timeout_s,
            max_retries=0,
            default_headers={"Connection": "close"},
        )

    @property
    def parameters(self) -> Mapping[str, Any]:
        stream = {"stream": True} if self._model.stream else {}
        name = self._model.sent_as or self._model.name
        return {"model": name, self._limit: self._model.max_tokens, **stream, **self._optional}

    async def ask(self, request: Request) -> ModelAnswer:
        messages = [{"role": m.role, "content": storable(m.text)} for m in request.prompt.messages]
        while True:
            sent = self.parameters
            try:
                found = await self._client.chat.completions.create(messages=messages, **sent)  # type: ignore[arg-type]
                return await self._whole(found) if self._model.stream else self._answer(found)
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                if not self._adapt(sent, _said(error)):
                    raise self._refusal(error) from None
            except openai.APIStatusError as error:
                raise self._refusal(error) from None
            except openai.APITimeoutError as error:
                raise Failed(f"no answer within {self._model.timeout_s:g} s", _unconnected(error)) from None
            # ValueError: a body that is not JSON.  APIError: among others, an error that a stream reports.
            except (openai.APIError, ValueError) as error:
                reason = self._clean(f"{error} ({error.__cause__ or type(error).__name__})")
                raise Failed(reason, _unconnected(error)) from None

    async def served(self) -> set[str] | None:
        """Returns the models that the endpoint says it serves, a free request.

        None if it has no list, or an empty one: some servers load a model only when it is first asked for.
        Raises Failed or LlmError if it cannot be asked.
        """
        try:
            page = await self._client.with_options(timeout=PROBE_S).models.list()
            return {model.id for model in page.data} or None
        except openai.NotFoundError:
            return None
        except openai.APIStatusError as error:
            raise self._refusal(error) from None
        except (openai.APIConnectionError, openai.APIResponseValidationError, ValueError) as error:
            raise Failed(self._clean(f"{error} ({error.__cause__ or type(error).__name__})")) from None
        except (AttributeError, TypeError):  # a body of another kind comes through with parts missing
            return None

    def _answer(self, found: Any) -> ModelAnswer:
        # A body of another kind comes through as text or with parts missing.
        usage = getattr(found, "usage", None)
        if not isinstance(found, ChatCompletion) or not found.choices or found.choices[0].message is None:
            raise Failed(self._clean(f"expected a chat completion, got {found!r}"), self._bill(usage))
        choice = found.choices[0]
        content = choice.message.content or ""
        if not isinstance(content, str):  # nothing was checked on the way
            raise Failed(self._clean(f"expected text as the answer, got {content!r}"), self._bill(usage))
        return self._made(content, _reasoning(choice.message), choice.finish_reason, usage)

    async def _whole(self, stream: Any) -> ModelAnswer:
        """Returns the answer that a stream brings in parts.

        Raises Failed for a stream without an end.  Its bill is unknown: a part may have counted what came before it.
        """
        content, reasoning, finish, usage = "", "", None, None
        async with stream:
            async for part in _parts(stream):
                usage = getattr(part, "usage", None) or usage
                choices = getattr(part, "choices", None)
                for choice in choices[:1] if isinstance(choices, list) else []:
                    finish = getattr(choice, "finish_reason", None) or finish
                    delta = getattr(choice, "delta", None)
                    content += _text(getattr(delta, "content", None))
                    reasoning += _reasoning(delta)
        if finish is None:
            raise Failed(f"expected a stream that ends with a finish_reason, got {len(content)} characters without one")
        return self._made(content, reasoning, finish, usage)

    def _made(self, content: str, reasoning: str, finish: str | None, usage: Any) -> ModelAnswer:
        text, inside = split_reasoning(content)
        return ModelAnswer(text, str(finish or "unknown"), inside or reasoning, self._bill(usage))

    def _bill(self, usage: Any) -> Bill | None:
        """Returns the bill that the endpoint counted, None if it does not say."""
        tokens = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        if not all(isinstance(n, int) and n >= 0 for n in tokens):
            return None
        return Bill(*tokens, self._model.usd(*tokens))  # type: ignore[arg-type]

    def _adapt(self, sent: Mapping[str, Any], message: str) -> bool:
        """Leaves out a setting that the endpoint refuses; returns whether that changes the request."""
        if "max_tokens" in sent and "max_completion_tokens" in message:
            self._limit = "max_completion_tokens"
            return True
        named = [name for name in self._optional if name in sent and name in message]
        for name in named:
            self._optional.pop(name, None)  # another request may have removed it already
        return bool(named)

    def _refusal(self, error: openai.APIStatusError) -> Exception:
        status, message = error.status_code, self._clean(_said(error))
        if status in _PASSING and error.code != _NO_QUOTA:
            return Failed(message, None if status in _UNKNOWN_BILL else NOTHING, retry_after(error.response.headers))
        if status == 400 and _TOO_LONG.search(message):  # other prompts may fit
            return Failed(message, NOTHING, again=False)
        hint = f"; put a key into {self._model.key_variable} or OPENAI_API_KEY" if status in (401, 403) else ""
        return LlmError(f"model {self._model.name} at {self._model.endpoint} refuses: {message}{hint}")

    def _clean(self, message: str) -> str:
        """Returns `message` in one short and plain line, without the key, even if the endpoint repeats it."""
        if self._key:
            message = message.replace(self._key, "[key]")
        return plain(" ".join(message.split())[:_MESSAGE_CHARACTERS])

    async def close(self) -> None:
        await self._client.close()


def find_key(model: Model, environment: Mapping[str, str]) -> str:
    """Returns the key for `model`, "" without one.

    The general key is for everyone's endpoint, so it is not sent in clear text to another machine.
    """
    own = environment.get(model.key_variable, "")
    if own or model.provider != "openai":
        return own
    key = environment.get("OPENAI_API_KEY", "")
    parts = urlsplit(model.endpoint)
    if key and parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise ConfigError(
            f"model {model.name}: expected https: OPENAI_API_KEY would be sent in clear text to {parts.hostname}; "
            f"use https, unset it, or set {model.key_variable} to the key this endpoint is to get"
        )
    return key


def split_reasoning(text: str) -> tuple[str, str]:
    """Splits an answer from its reasoning, for servers that leave the reasoning in the answer."""
    found = re.match(r"\s*(?:<think>)?(.*?)</think>\s*", text, re.DOTALL)
    if found:
        return text[found.end() :], found.group(1).strip()
    return ("", text.strip()[len("<think>") :].strip()) if text.lstrip().startswith("<think>") else (text, "")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that the endpoint asks to wait, None if it does not."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _said(error: openai.APIStatusError) -> str:
    """Returns the message of a refusal, with the whole body if openai finds no message in it, as in FastAPI's."""
    message = str(error)
    bare = re.fullmatch(r"Error code: \d+", message)
    return f"{message} - {error.response.text}" if bare and error.response.text else message


def _unconnected(error: Exception) -> Bill | None:
    """Returns a bill of nothing if no connection was made, None for unknown otherwise."""
    # By name: openai uses httpx before version 3 and httpx2 since then.
    return NOTHING if type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout", "PoolTimeout") else None


async def _parts(stream: Any) -> AsyncIterator[Any]:
    """Yields the parts of a stream.  Raises Failed if the connection ends before the stream does."""
    try:
        async for part in stream:
            yield part
    except openai.OpenAIError:
        raise
    except Exception as error:  # before version 3, openai passes errors of its HTTP library through
        raise Failed(f"the stream broke off: {type(error).__name__}: {error}") from None


def _reasoning(message: Any) -> str:
    """Returns the reasoning that a message, or a part of one, has beside its text; "" for none."""
    extra = getattr(message, "model_extra", None) or {}
    return _text(extra.get("reasoning_content") or extra.get("reasoning"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
