//! What a template runs in: Jinja as Hugging Face has it, with bounds.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::answers::{ANSWER_FILTER, mark, with_answer_filter};
use crate::data::error::DataError;

/// The longest published template has 40 kB.
pub(super) const MAX_SOURCE: usize = 256 << 10;
/// Minijinja's parser and compiler call themselves for each of a chain of operators, of which a source may be full.
const STACK: usize = 512 << 20;
/// Spaces of the filter `indent`.
const MAX_INDENT: usize = 1000;
/// Instructions that one rendering may take; a long conversation takes about 100 000.
const FUEL: u64 = 5_000_000;
const RECURSION_LIMIT: usize = 100;

/// With the template `chat` of this source.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, DataError> {
    if source.len() > MAX_SOURCE {
        return Err(DataError::Template(format!("has {} bytes; at most {MAX_SOURCE} are read", source.len())));
    }
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(describe)?;
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_filter(ANSWER_FILTER, mark);
    // These make as much of little as they are asked for.
    environment.add_filter("indent", indent);
    ["batch", "slice", "format"].into_iter().for_each(|filter| environment.remove_filter(filter));
    // minijinja's own escapes `<`, `>` and `&`; Hugging Face's does not.
    environment.add_filter("tojson", |value: Serde<Json>| serde_json::to_string(&value.0).unwrap_or_default());
    // Python's `None` is not iterable.
    environment
        .add_test("iterable", |value: Value| !value.is_none() && !value.is_undefined() && value.try_iter().is_ok());
    compile(environment, with_answer_filter(source))
}

/// The environment with the template, on a thread with a large stack.
fn compile(mut environment: Environment<'static>, source: String) -> Result<Environment<'static>, DataError> {
    let compile = move || environment.add_template_owned("chat", source).map(|()| environment).map_err(describe);
    let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK).spawn(compile);
    let compiled = thread.map_err(|error| DataError::Template(format!("cannot be compiled: {error}")))?.join();
    compiled.unwrap_or_else(|_| Err(DataError::Template("cannot be compiled".to_owned())))
}

/// As Jinja's, with a bound.
fn indent(
    text: String,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(4);
    let (first, blank) = (first.or(kwargs.get("first")?), blank.or(kwargs.get("blank")?));
    kwargs.assert_all_used()?;
    if width > MAX_INDENT {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("indent of {width}, more than {MAX_INDENT}")));
    }
    let lines = text.split('\n').enumerate().map(|(index, line)| {
        let indented = if index == 0 { first == Some(true) } else { !line.is_empty() || blank == Some(true) };
        if indented { format!("{:width$}{line}", "") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

pub(super) fn describe(error: Error) -> DataError {
    let reason = match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("line {line}: {detail}"),
        _ => error.to_string(),
    };
    DataError::Template(reason)
}
