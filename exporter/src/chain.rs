//! An error as a person reads it: with what caused it.

/// An error with its sources, in one line.
pub fn chain(err: &dyn std::error::Error) -> String {
    let mut said = err.to_string();
    let mut next = err.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Libraries that say their source in their own words would say it twice.
        if !said.ends_with(&more) {
            said = format!("{said}: {more}");
        }
        next = source.source();
    }
    said
}
