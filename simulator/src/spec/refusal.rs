//! What is wrong with a spec, in our words: file, line, key, next step.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// What is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A key that no spec has.
    #[error("line {line}: {place}unknown key `{key}`; did you mean `{nearest}`?")]
    UnknownKey {
        /// 1-based.
        line: usize,
        /// The path above it, ending in `: `, or nothing.
        place: String,
        /// The key.
        key: String,
        /// The known key nearest to it.
        nearest: String,
    },
    /// Not YAML, or not of the right form.
    #[error("{}{message}", line.map_or(String::new(), |line| format!("line {line}: ")))]
    Form {
        /// 1-based, where known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// Values that no fleet can have.
    #[error("{}", join(.0))]
    Limits(Vec<Problem>),
}

/// A value that no fleet can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// 1-based, where the text is known.
    pub line: Option<usize>,
    /// The key at fault, with its path.
    pub key: String,
    /// What is wrong with it, and what to do.
    pub message: String,
}

fn join(problems: &[Problem]) -> String {
    let line = |p: &Problem| p.line.map_or(String::new(), |line| format!("line {line}: "));
    let lines: Vec<String> = problems.iter().map(|p| format!("{}{}: {}", line(p), p.key, p.message)).collect();
    lines.join("\n")
}

impl SpecError {
    /// The same with the line of every key in `yaml`.
    pub(super) fn with_lines(mut self, yaml: &str) -> Self {
        if let Self::Limits(problems) = &mut self {
            for problem in problems {
                problem.line = line_of(yaml, &problem.key);
            }
        }
        self
    }
}

/// Line of `path` (`clusters[0].name`) in `yaml`; of what holds it, where it is not there itself.
fn line_of(yaml: &str, path: &str) -> Option<usize> {
    let steps: Vec<&str> = path.split(['.', '[', ']']).filter(|step| !step.is_empty()).collect();
    (1..=steps.len()).rev().find_map(|depth| {
        let walk = Walk { steps: &steps[..depth] };
        let err = walk.deserialize(serde_yaml_ng::Deserializer::from_str(yaml)).err()?;
        err.to_string().contains(FOUND).then_some(err.location()?.line())
    })
}

/// What the reader is stopped with where it stands on the key that is looked for: it then tells the line.
const FOUND: &str = "the key that is looked for";

struct Walk<'a> {
    steps: &'a [&'a str],
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FOUND)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.steps.split_first() else { return Err(A::Error::custom(FOUND)) };
        while let Some(key) = map.next_key::<String>()? {
            if key == *step {
                map.next_value_seed(Walk { steps: rest })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.steps.split_first() else { return Err(A::Error::custom(FOUND)) };
        let mut at = 0_usize;
        loop {
            let more = if step.parse() == Ok(at) {
                list.next_element_seed(Walk { steps: rest })?.is_some()
            } else {
                list.next_element::<IgnoredAny>()?.is_some()
            };
            if !more {
                return Ok(());
            }
            at += 1;
        }
    }
}

pub(super) fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> &'a str {
    known.min_by_key(|word| (strsim::damerau_levenshtein(text, word), *word)).unwrap_or("nothing at all")
}

/// A refusal of the YAML reader in our words: the line, the key, the nearest known key.
pub(super) fn explain(err: &serde_yaml_ng::Error) -> SpecError {
    let line = err.location().map(|location| location.line());
    let mut message = err.to_string();
    if let Some(location) = err.location() {
        message = message.replace(&format!(" at line {} column {}", location.line(), location.column()), "");
    }
    for (said, what) in [("unknown field `", "key"), ("unknown variant `", "word")] {
        let Some((place, rest)) = message.split_once(said) else { continue };
        let Some((key, expected)) = rest.split_once('`') else { continue };
        let known = expected.split('`').skip(1).step_by(2);
        let nearest = nearest(key, known).to_owned();
        let (place, key) = (place.to_owned(), key.to_owned());
        return match what {
            "key" => SpecError::UnknownKey { line: line.unwrap_or(1), place, key, nearest },
            _ => SpecError::Form { line, message: format!("{place}`{key}` is no word here; did you mean `{nearest}`?") },
        };
    }
    SpecError::Form { line, message }
}
