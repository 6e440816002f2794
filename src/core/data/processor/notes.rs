//! Notes on conversations that are not wrong, but not as their author may think: counted over the samples.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use crate::data::source::Turn;
use crate::data::template::ChatTemplate;

/// Names that a key about the loss may have.
const LOSS_WORDS: [&str; 5] = ["loss", "mask", "weight", "train", "learn"];

/// Key of a tool's answer that names its call. OpenAI's format requires it, and most templates go by the order.
const LINK: &str = "tool_call_id";

/// Kinds of notes that are told apart: keys may have any names, and there are as many as somebody writes.
const MAX_KINDS: usize = 64;
/// Stands for all others.
const OTHERS: &str = "have other keys that are not rendered or not read";

/// The most samples that the log has told of each note, whoever read them: a run's checks, training and evaluations read apart.
static TOLD: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Roles that every template knows, and others that are usual: a template may write them as any role, or not at all.
const KNOWN_ROLES: [&str; 2] = ["user", "assistant"];
const OTHER_ROLES: [&str; 3] = ["system", "developer", "tool"];
/// Characters of a role or a key that a note repeats.
const MAX_NAME: usize = 40;

/// Notes with the number of samples that each is about.
#[derive(Default)]
pub(super) struct Notes(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    conversations: u64,
    notes: BTreeMap<String, u64>,
}

impl Notes {
    /// Notes what `turns` have that is not in `text`, their rendering, which `asks` for an answer or does not. The log says so at the
    /// 1st, 10th, 100th … sample, once in a process.
    pub fn of_sample(&self, template: &ChatTemplate, turns: &[Turn], text: &str, asks: bool) {
        let notes = notes(template, turns, text, asks);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.conversations += 1;
        let conversations = counts.conversations;
        let mut has_others = false;
        for note in notes {
            let is_other = !counts.notes.contains_key(&note) && counts.notes.len() >= MAX_KINDS;
            // A conversation counts once, however many of them it has.
            if is_other && std::mem::replace(&mut has_others, true) {
                continue;
            }
            let note = if is_other { OTHERS.to_owned() } else { note };
            let count = counts.notes.entry(note.clone()).or_default();
            *count += 1;
            if is_news(&TOLD, &note, *count) {
                tracing::warn!("{}", line(*count, conversations, &note));
            }
        }
    }

    /// Returns the notes so far with how many samples they are of, a line each.
    pub fn lines(&self) -> Vec<String> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.notes.iter().map(|(note, &count)| line(count, counts.conversations, note)).collect()
    }
}

/// Arguments of calls that are texts in which something is quoted.
fn argument_texts(turns: &[Turn]) -> impl Iterator<Item = &str> {
    let calls = turns.iter().filter_map(|turn| turn.fields.get("tool_calls")?.as_array()).flatten();
    let arguments = calls.filter_map(|call| call.get("function").unwrap_or(call).get("arguments")?.as_str());
    arguments.filter(|text| text.contains('"'))
}

/// Returns whether the log is to tell that `count` samples have this note, and counts it as told.
fn is_news(told: &Mutex<BTreeMap<String, u64>>, note: &str, count: u64) -> bool {
    if 10u64.pow(count.ilog10()) != count {
        return false;
    }
    let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let most = told.get(note).copied().unwrap_or(0);
    if most > 0 || told.len() < MAX_KINDS {
        told.insert(note.to_owned(), most.max(count));
    }
    count > most
}

fn line(count: u64, conversations: u64, note: &str) -> String {
    format!("{count} of {conversations} conversations {note}")
}

fn notes(template: &ChatTemplate, turns: &[Turn], text: &str, asks: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let is_lost = |change: &dyn Fn(&mut Turn)| {
        let mut others = turns.to_vec();
        others.iter_mut().for_each(change);
        let other = if asks { template.render_prompt(&others) } else { template.render(&others) };
        other.is_ok_and(|other| other == text)
    };
    let keys = turns.iter().flat_map(|turn| turn.fields.keys()).filter(|key| *key != LINK);
    let keys: BTreeSet<&String> = keys.collect();
    for key in keys {
        if is_lost(&|turn: &mut Turn| drop(turn.fields.shift_remove(key))) {
            let is_of_loss = LOSS_WORDS.iter().any(|word| key.to_lowercase().contains(word));
            let hint =
                if is_of_loss { " (keys of the loss are weight, train, training, loss and loss_mask)" } else { "" };
            notes.push(format!("have the message key {:?}, which the chat template does not render{hint}", cut(key)));
        }
    }
    if let Some(system) = turns.iter().find(|turn| turn.is_default) {
        let note = match text.contains(system.joined_text().trim()) {
            true => "have no system message and get that of `system`",
            false => "have no system message, and the chat template does not render that of `system`",
        };
        notes.push(note.to_owned());
    }
    notes.extend(of_roles(template, turns, text, asks));
    let unread: BTreeSet<&String> = turns.iter().flat_map(|turn| &turn.unread).collect();
    notes.extend(
        unread.into_iter().map(|key| format!("have the key {:?} in a part of a message, which is not read", cut(key))),
    );
    if turns.iter().any(|turn| !turn.tools.is_empty()) && is_lost(&|turn: &mut Turn| turn.tools.clear()) {
        notes.push("have `tools`, which the chat template does not render".to_owned());
    }
    if argument_texts(turns).any(|arguments| !text.contains(arguments)) {
        notes.push(
            "have calls with arguments as JSON text, which the chat template does not render as it is (write them as \
             an object)"
                .to_owned(),
        );
    }
    let is_tagged = |turn: &Turn| {
        let text = turn.joined_text();
        text.split_once("<img>").is_some_and(|(_, rest)| rest.contains("</img>"))
    };
    if turns.iter().any(is_tagged) {
        notes.push(
            "have a name in <img>…</img>, which is read as text: write <image> in its place, and the file in `images`"
                .to_owned(),
        );
    }
    let kwargs: BTreeSet<&String> = turns.iter().flat_map(|turn| turn.kwargs.keys()).collect();
    let unknown = kwargs.into_iter().filter(|key| !template.knows(key));
    notes.extend(
        unknown
            .map(|key| format!("set {:?} in `chat_template_kwargs`, which the chat template does not use", cut(key))),
    );
    if turns.iter().any(|turn| turn.role != "assistant" && turn.learn == Some(true)) {
        notes.push(
            "ask for the loss of a message that is not the assistant's; only the assistant's contribute to the loss"
                .to_owned(),
        );
    }
    notes
}

/// A name that anybody may have written, so that a note of it is short.
fn cut(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

/// Tells of roles that the template does not know: most write any role, so that one which is misspelled is no error.
fn of_roles(template: &ChatTemplate, turns: &[Turn], text: &str, asks: bool) -> Vec<String> {
    let is_lost = |role: &str| {
        let others: Vec<Turn> = turns.iter().filter(|turn| turn.role != role).cloned().collect();
        let render = || if asks { template.render_prompt(&others) } else { template.render(&others) };
        !others.is_empty() && render().is_ok_and(|other| other == text)
    };
    // Of a system message that is not the record's is told above.
    let roles: BTreeSet<&str> = turns.iter().filter(|turn| !turn.is_default).map(|turn| turn.role.as_str()).collect();
    let unknown = roles.into_iter().filter(|role| !KNOWN_ROLES.contains(role) && !template.quotes(role));
    let note = |role: &str| {
        let shown = cut(role);
        if is_lost(role) {
            return Some(format!("have messages of the role {shown:?}, which the chat template does not render"));
        }
        (!OTHER_ROLES.contains(&role)).then(|| {
            format!(
                "have messages of the role {shown:?}, which the chat template does not know (usual are system, user, \
                 assistant and tool)"
            )
        })
    };
    unknown.filter_map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Json;

    #[test]
    fn roles_that_the_template_does_not_know_are_told() {
        let of = |source: &str| ChatTemplate::new(source, &Json::Null).unwrap();
        let any = of("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
        let own = of("{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}\
            {% elif m.role == \"ipython\" %}={{ m.content }}{% endif %}{% endfor %}");
        let told = |template: &ChatTemplate, role: &str| {
            let turns = [("user", "q"), (role, "r"), ("assistant", "a")].map(|(role, text)| Turn::text(role, text));
            notes(template, &turns, &template.render(&turns).unwrap(), false)
        };
        for role in ["user", "assistant", "system", "tool", "developer"] {
            assert!(told(&any, role).is_empty(), "{role}");
        }
        let misspelled = told(&any, "asistant");
        assert!(misspelled[0].contains("role \"asistant\", which the chat template does not know"), "{misspelled:?}");
        assert!(told(&own, "ipython").is_empty());
        for role in ["system", "tool", "developer", "asistant"] {
            let expected = format!("have messages of the role {role:?}, which the chat template does not render");
            assert_eq!(told(&own, role), [expected]);
        }
    }

    #[test]
    fn files_in_tags_of_the_first_qwen_vl_are_told() {
        let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}", &Json::Null).unwrap();
        let told = |text: &str| {
            let turns = [Turn::text("user", text), Turn::text("assistant", "a")];
            notes(&template, &turns, &template.render(&turns).unwrap(), false)
        };
        let tagged = told("Picture 1: <img>a.jpg</img>\nWho?");
        assert!(tagged.len() == 1 && tagged[0].contains("which is read as text: write <image>"), "{tagged:?}");
        assert_eq!(told("</img> before <img>"), Vec::<String>::new());
    }

    #[test]
    fn variables_that_the_template_does_not_use_are_told_with_short_names() {
        let template = ChatTemplate::new("{% for m in messages %}{{ m.content }}{{ mood }}{% endfor %}", &Json::Null);
        let mut turn = Turn::text("user", "q");
        ["mood".to_owned(), "x".repeat(1 << 20)].into_iter().for_each(|name| drop(turn.kwargs.insert(name, 1.into())));
        let (template, turns) = (template.unwrap(), [turn]);
        let told = notes(&template, &turns, &template.render(&turns).unwrap(), true);
        let name = "x".repeat(MAX_NAME);
        let expected = format!("set {name:?} in `chat_template_kwargs`, which the chat template does not use");
        assert_eq!(told, [expected]);
    }

    #[test]
    fn the_log_tells_a_note_once_however_many_read_its_samples() {
        let told = Mutex::default();
        let read = |note: &str, samples: u64| (1..=samples).filter(|count| is_news(&told, note, *count)).count();
        assert_eq!([read("a", 12), read("a", 12), read("a", 100), read("b", 1)], [2, 0, 1, 1]);
        (0..MAX_KINDS).for_each(|kind| assert_eq!(read(&kind.to_string(), 1), 1));
        assert_eq!(told.into_inner().unwrap().len(), MAX_KINDS);
    }
}
