//! A column of a batch as runs of equal rows.

use arrow::{
    array::{Array, Int32Array, Int64Array, StringArray},
    buffer::NullBuffer,
};

/// Equal rows, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where the value is: its key in a dictionary, else the first row of the run. [`ABSENT`] where there is none.
    pub(super) at: u32,
    /// Rows of it, never 0.
    pub(super) rows: u32,
}

/// Of rows that are null.
pub(super) const ABSENT: u32 = u32::MAX;

/// The rows of a batch in runs.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pub(super) of: Vec<Run>,
    pub(super) rows: usize,
    /// Whether the column says without a look at its rows that all of them or none is null: then parquet's writer takes a page of
    /// rows at a time.
    pub(super) uniform: bool,
}

impl Runs {
    /// By the keys of a dictionary. `nulls` counts the dictionary's nulls in.
    pub(super) fn of_keys(&mut self, keys: &Int32Array, nulls: Option<&NullBuffer>) {
        let keys = keys.values();
        self.read(keys.len(), nulls, |start, end| {
            let key = keys[start];
            let end = start + 1 + same(&keys[start + 1..end], key);
            (key as u32, end)
        });
    }

    /// By the texts themselves.
    pub(super) fn of_texts(&mut self, texts: &StringArray) {
        let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
        let text = |row: usize| &bytes[offsets[row] as usize..offsets[row + 1] as usize];
        self.read(texts.len(), texts.nulls(), |start, end| {
            let first = text(start);
            (start as u32, (start + 1..end).find(|row| text(*row) != first).unwrap_or(end))
        });
    }

    /// By the numbers themselves.
    pub(super) fn of_numbers(&mut self, numbers: &Int64Array) {
        let values = numbers.values();
        self.read(values.len(), numbers.nulls(), |start, end| {
            (start as u32, start + 1 + same(&values[start + 1..end], values[start]))
        });
    }

    /// `run` gives for rows `start..end`, none of them null, where the first one's value is and where its run ends.
    fn read(&mut self, rows: usize, nulls: Option<&NullBuffer>, run: impl Fn(usize, usize) -> (u32, usize)) {
        self.of.clear();
        (self.rows, self.uniform) = (rows, nulls.is_none_or(|nulls| nulls.null_count() == rows));
        let mut next = 0;
        let mut add = |at: u32, rows: usize| {
            if rows > 0 {
                self.of.push(Run { at, rows: rows as u32 });
            }
        };
        let mut valid = |start: usize, end: usize| {
            add(ABSENT, start - next);
            next = start;
            while next < end {
                let (at, until) = run(next, end);
                add(at, until - next);
                next = until;
            }
        };
        match nulls {
            None => valid(0, rows),
            Some(nulls) => nulls.valid_slices().for_each(|(start, end)| valid(start, end)),
        }
        valid(rows, rows);
    }
}

/// How many of the first values are `value`.
fn same<T: Copy + PartialEq>(values: &[T], value: T) -> usize {
    // Most runs end early; the long ones are compared by many at a time.
    const FEW: usize = 16;
    const MANY: usize = 64;
    let mut at = values.iter().take(FEW).take_while(|other| **other == value).count();
    if at < FEW {
        return at;
    }
    while let Some(many) = values.get(at..at + MANY) {
        if many.iter().fold(false, |differs, other| differs | (*other != value)) {
            break;
        }
        at += MANY;
    }
    at + values[at..].iter().take_while(|other| **other == value).count()
}
