//! Describes where a turn of a conversation begins and ends in the conversation's rendering.
//!
//! A template may render a turn in another way when it is the last one, or leave the system's words out until then. So where the
//! rendering of the turns up to one is no prefix of the text, a stand-in is put behind the turn's content: what follows the
//! stand-in, in the whole conversation and in the turns up to this one, is the rest of the text and the rest of the turn.

use serde_json::Value as Json;

use super::error::DataError;
use super::source::{Part, Turn, Written};
use super::template::ChatTemplate;

/// A content by which the place of a turn's own is found.
const STAND_IN: &str = "loongforge-stand-in";

/// A conversation and `text`, what the template renders of it.
pub struct Places<'a> {
    pub template: &'a ChatTemplate,
    pub turns: &'a [Turn],
    pub text: &'a str,
}

impl Places<'_> {
    /// Returns where the answer `index` would be generated from: behind its header.
    ///
    /// # Errors
    /// The template renders the turns in a way in which that cannot be told.
    pub fn begin(&self, index: usize) -> Result<usize, DataError> {
        let before = &self.turns[..index];
        let floor = self.end_of_first(index);
        if let Ok(prompt) = self.template.render_prompt(before)
            && self.text.starts_with(&prompt)
            && prompt.len() > floor.unwrap_or(0)
        {
            return Ok(prompt.len());
        }
        // A space before the content is the first token's.
        let content = self.content_begin(index).map(|at| self.text[..at].trim_end_matches(' ').len());
        let Some(floor) = floor else {
            let reason = "changes the rendering of the turns before it";
            return content.ok_or_else(|| DataError::Template(format!("turn {index} {reason}")));
        };
        let rest = &self.text[floor..];
        // Variables, as `enable_thinking`, may put into the prompt for an answer what the answer lacks.
        let headers: Vec<String> =
            [true, false].iter().filter_map(|&kwargs| self.template.generation_prompt(before, kwargs)).collect();
        if let Some(header) = headers.iter().find(|header| rest.starts_with(header.as_str())) {
            return Ok(floor + header.len());
        }
        // The template knows no header, or one that training turns lack: many end theirs in `<think>`.
        let shared = headers.iter().map(|header| common_prefix(header, rest)).max().filter(|&shared| shared > 0);
        let begin = content.into_iter().chain(shared.map(|shared| floor + shared)).min();
        Ok(begin.map_or(floor, |begin| begin.max(floor)))
    }

    /// Returns where the turn `index` ends at the latest, and whether it ends there: else the content of a later one begins
    /// there, behind its header.
    pub fn limit(&self, index: usize) -> (usize, bool) {
        if let Some(end) = self.end_of_first(index + 1) {
            return (end, true);
        }
        let next = (index + 1..self.turns.len()).find_map(|later| self.content_begin(later));
        (next.unwrap_or(self.text.len()), false)
    }

    /// Returns where the content of a turn and all that belongs to it ends: behind it stands what stands behind another
    /// content.
    pub fn content_end(&self, index: usize) -> Option<usize> {
        let behind = |keeps_fields: bool| {
            let mut others = self.with_content(index);
            if !keeps_fields {
                others[index].fields.clear();
            }
            self.place_behind(&others)
        };
        behind(false).or_else(|| behind(true))
    }

    /// Returns where the first `count` turns end.
    fn end_of_first(&self, count: usize) -> Option<usize> {
        let prefix = self.template.render(&self.turns[..count]).ok();
        if let Some(prefix) = prefix.filter(|prefix| self.text.starts_with(prefix.as_str())) {
            return Some(prefix.len());
        }
        let index = count.checked_sub(1)?;
        let stand_ins = [Some(stand_behind_content(&self.turns[index])), stand_for_call(&self.turns[index])];
        stand_ins.into_iter().flatten().find_map(|other| {
            let mut others = self.turns.to_vec();
            others[index] = other;
            let at = self.place_behind(&others)?;
            let rendered = self.template.render(&others[..count]).ok()?;
            let rest = behind_stand_in(&rendered)?;
            self.text[at..].starts_with(rest).then_some(at + rest.len())
        })
    }

    /// Returns where the content of a turn begins, by putting another in its place.
    fn content_begin(&self, index: usize) -> Option<usize> {
        let rendered = self.template.render(&self.with_content(index)).ok()?;
        let at = rendered.find(STAND_IN)?;
        self.text.starts_with(&rendered[..at]).then_some(at)
    }

    fn with_content(&self, index: usize) -> Vec<Turn> {
        let mut others = self.turns.to_vec();
        others[index].parts = vec![Part::Text { text: STAND_IN.to_owned() }];
        others[index].written = Written::Text;
        others
    }

    /// Returns the place in the text behind which it is as behind the stand-in of `others`.
    fn place_behind(&self, others: &[Turn]) -> Option<usize> {
        let rendered = self.template.render(others).ok()?;
        let behind = behind_stand_in(&rendered)?;
        self.text.ends_with(behind).then(|| self.text.len() - behind.len())
    }
}

fn behind_stand_in(rendered: &str) -> Option<&str> {
    rendered.rfind(STAND_IN).map(|at| &rendered[at + STAND_IN.len()..])
}

/// Returns the turn with the stand-in as the last words of its content.
fn stand_behind_content(turn: &Turn) -> Turn {
    let mut turn = turn.clone();
    turn.parts.push(Part::Text { text: STAND_IN.to_owned() });
    if matches!(turn.written, Written::Null | Written::Absent) {
        turn.written = Written::Text;
    }
    turn
}

/// Returns the turn with the stand-in as name of the last function that it calls.
fn stand_for_call(turn: &Turn) -> Option<Turn> {
    let mut turn = turn.clone();
    let call = turn.fields.get_mut("tool_calls")?.as_array_mut()?.last_mut()?;
    let name = match call.get("function") {
        Some(_) => call.pointer_mut("/function/name"),
        None => call.get_mut("name"),
    };
    *name? = Json::from(STAND_IN);
    Some(turn)
}

fn common_prefix(left: &str, right: &str) -> usize {
    let same = left.chars().zip(right.chars()).take_while(|(a, b)| a == b);
    same.map(|(letter, _)| letter.len_utf8()).sum()
}
