//! The messages of a chat request as a conversation.

use serde_json::{Map, Value as Json, json};

use super::error::ApiError;
use super::fields::{Fields, MAX_VALUES, num_values};
use crate::data::{Conversation, MediaSource, Written};

/// Fields of a message that a chat template may read. Others are refused, unless they say nothing.
const KNOWN: [&str; 6] = ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"];
/// Variables of a chat template that no request sets.
const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Takes `messages`, `tools`, `tool_choice` and `chat_template_kwargs`.
///
/// # Errors
/// A field is missing, or not what it must be.
pub fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let Some(Json::Array(mut messages)) = fields.take("messages") else {
        return Err(ApiError::bad("messages", "`messages` must be a list of messages"));
    };
    if messages.is_empty() {
        return Err(ApiError::bad("messages", "`messages` must have at least one message"));
    }
    let (mut are_strings, mut room) = (Vec::with_capacity(messages.len()), MAX_VALUES);
    for (at, message) in messages.iter_mut().enumerate() {
        let Json::Object(message) = message else {
            return Err(ApiError::bad(format!("messages[{at}]"), format!("`messages[{at}]` must be an object")));
        };
        are_strings.push(matches!(message.get("content"), Some(Json::String(_))));
        normalize(message, at, &mut room)?;
    }
    let tools = match (fields.take("tools"), fields.take("tool_choice")) {
        (tools, None) => tools,
        (tools, Some(Json::String(choice))) if choice == "auto" => tools,
        (_, Some(Json::String(choice))) if choice == "none" => None,
        _ => {
            let hint = "only \"auto\" and \"none\" are supported: name the tool in a message instead";
            return Err(ApiError::unsupported("tool_choice", hint));
        }
    };
    expect_tools(tools.as_ref())?;
    let kwargs = fields.take("chat_template_kwargs");
    // The JSON text of an object, which data may have, can have any number of values.
    if kwargs.as_ref().is_some_and(|kwargs| !kwargs.is_object()) {
        return Err(ApiError::bad("chat_template_kwargs", "`chat_template_kwargs` must be an object"));
    }
    let record = json!({
        "messages": messages,
        "tools": tools,
        "chat_template_kwargs": kwargs,
    });
    let parsed = Conversation::parse(&record.to_string());
    let mut conversation = parsed.map_err(|error| ApiError::of_data("messages", error))?;
    let mut variables = conversation.turns.iter().flat_map(|turn| turn.kwargs.keys());
    if let Some(name) = variables.find(|name| OWN_VARIABLES.contains(&name.as_str())) {
        let hint = "the server sets this variable of the chat template";
        return Err(ApiError::unsupported(format!("chat_template_kwargs.{name}"), hint));
    }
    for (turn, is_string) in conversation.turns.iter_mut().zip(are_strings) {
        if is_string {
            turn.written = Written::Text;
        }
    }
    if conversation.media.iter().any(|source| matches!(source, MediaSource::Context(_))) {
        return Err(ApiError::bad("messages", "parts of type \"context\" are only supported in training data"));
    }
    Ok(conversation)
}

/// Every tool is a function with a name: a template would write anything else into the prompt as it is.
fn expect_tools(tools: Option<&Json>) -> Result<(), ApiError> {
    let tools = match tools {
        None => return Ok(()),
        Some(Json::Array(tools)) => tools,
        Some(_) => return Err(ApiError::bad("tools", "`tools` must be a list of tools")),
    };
    let is_tool = |tool: &Json| tool["type"] == "function" && tool["function"]["name"].is_string();
    match tools.iter().position(|tool| !is_tool(tool)) {
        None => Ok(()),
        Some(at) => {
            let param = format!("tools[{at}]");
            let reason = format!(
                "`{param}` must be {{\"type\": \"function\", \"function\": {{\"name\": …, \"parameters\": …}}}}"
            );
            Err(ApiError::bad(param, reason))
        }
    }
}

/// Makes a message one of those that data readers know: content as parts, so that no word of a text stands for a file. `room` is how many
/// values the arguments of calls may still have.
fn normalize(message: &mut Map<String, Json>, at: usize, room: &mut usize) -> Result<(), ApiError> {
    let param = |name: &str| format!("messages[{at}].{name}");
    let says = |value: &Json| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
    if let Some(name) = message.iter().find(|(name, value)| !KNOWN.contains(&name.as_str()) && says(value)) {
        let name: String = name.0.chars().take(64).collect();
        return Err(ApiError::unsupported(param(&name), "this server does not know this field"));
    }
    message.retain(|name, value| KNOWN.contains(&name.as_str()) && !value.is_null() || name == "content");
    match message.get("role").and_then(Json::as_str) {
        Some("developer") => drop(message.insert("role".into(), "system".into())),
        Some(role) if ROLES.contains(&role) => {}
        _ => {
            return Err(ApiError::bad(
                param("role"),
                format!("the role of a message must be one of {}", ROLES.join(", ")),
            ));
        }
    }
    expect_content(message, at)?;
    if let Some(Json::String(text)) = message.get("content") {
        let parts = json!([{"type": "text", "text": text}]);
        message.insert("content".into(), parts);
    }
    // Templates write an object; OpenAI's clients send its JSON text.
    let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten();
    for arguments in calls.filter_map(|call| call.get_mut("function")?.get_mut("arguments")) {
        let Some(text) = arguments.as_str() else { continue };
        let too_many = || {
            let reason = format!("the arguments of all calls have more than {MAX_VALUES} JSON values");
            ApiError::bad(param("tool_calls"), reason)
        };
        *room = room.checked_sub(num_values(text)).ok_or_else(too_many)?;
        if let Ok(parsed) = serde_json::from_str::<Map<String, Json>>(text) {
            *arguments = Json::Object(parsed);
        }
    }
    Ok(())
}

/// Every message says something; an assistant's may say it in calls, or in its reasoning.
fn expect_content(message: &Map<String, Json>, at: usize) -> Result<(), ApiError> {
    let param = format!("messages[{at}].content");
    let has = |name: &str| match message.get(name) {
        None | Some(Json::Null) => false,
        Some(Json::Array(list)) => !list.is_empty(),
        Some(_) => true,
    };
    let is_said = has("content");
    if is_said && !message["content"].is_string() && !message["content"].is_array() {
        return Err(ApiError::bad(param.clone(), format!("`{param}` must be a string or a list of parts")));
    }
    let role = message.get("role").and_then(Json::as_str).unwrap_or_default();
    let is_otherwise = role == "assistant" && (has("tool_calls") || has("reasoning_content"));
    match is_said || is_otherwise {
        true => Ok(()),
        false => {
            Err(ApiError::bad(param.clone(), format!("`{param}` is missing: it must be a string or a list of parts")))
        }
    }
}
