//! What a shape of work usually reads: starting points with their sources, not law. From `baselines.csv`; about nought is
//! written there as at most 0.01.
//!
//! A baseline is shown only where the shape is known: by the pod's label `strandline.io/shape`, or by a kind of workload that is
//! of one shape. A training operator's job may be anything from a sweep to pretraining, and a server is bound by prefill or
//! decode as its traffic is; so these kinds alone say nothing.

use std::sync::LazyLock;

/// Bounds in parts per million; a side that is open is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Lowest usual value.
    pub least_ppm: Option<u32>,
    /// Highest usual value.
    pub most_ppm: Option<u32>,
}

/// What the bands of a baseline are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// What such work reads when it goes well.
    Target,
    /// What was measured somewhere, good or bad.
    Found,
    /// What it reads when something is wrong.
    Symptom,
}

/// One shape of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// Value of the label.
    pub shape: &'static str,
    /// Its name for people.
    pub name: String,
    /// What the bands are.
    pub basis: Basis,
    /// Busy tier; none where nobody says.
    pub busy: Option<Band>,
    /// SM activity, the headline tier.
    pub sm: Option<Band>,
    /// Tensor pipe activity.
    pub tensor: Option<Band>,
    /// Memory interface activity.
    pub dram: Option<Band>,
    /// Power, as a share of the board's limit.
    pub power: Option<Band>,
    /// Where the figures come from.
    pub source: String,
}

/// Kinds of workload that are of one shape.
const BY_KIND: &[(&str, &str)] = &[("Notebook", "notebook")];

/// Every baseline.
pub fn all() -> &'static [Baseline] {
    static ALL: LazyLock<Vec<Baseline>> = LazyLock::new(|| {
        let rows = include_str!("baselines.csv").lines().skip(1).enumerate();
        rows.map(|(row, line)| read(line).unwrap_or_else(|| panic!("baselines.csv, row {}: {line}", row + 2))).collect()
    });
    &ALL
}

/// The baseline for a pod: by its label, where that names one; by the kind of its workload (`Kind/name`), where there is no label
/// and the kind is of one shape; else none.
pub fn of(label: Option<&str>, workload: Option<&str>) -> Option<&'static Baseline> {
    let label = label.map(str::trim).filter(|label| !label.is_empty());
    let by_kind = || {
        let kind = workload?.split('/').next()?;
        BY_KIND.iter().find(|(known, _)| *known == kind).map(|(_, shape)| *shape)
    };
    let shape = match label {
        Some(label) => label,
        None => by_kind()?,
    };
    all().iter().find(|baseline| baseline.shape.eq_ignore_ascii_case(shape))
}

fn read(line: &'static str) -> Option<Baseline> {
    let [shape, name, basis, busy, sm, tensor, dram, power, source] = fields(line).try_into().ok()?;
    Some(Baseline {
        shape,
        name: name.to_owned(),
        basis: match basis {
            "target" => Basis::Target,
            "found" => Basis::Found,
            "symptom" => Basis::Symptom,
            _ => return None,
        },
        busy: band(busy)?,
        sm: band(sm)?,
        tensor: band(tensor)?,
        dram: band(dram)?,
        power: band(power)?,
        source: source.to_owned(),
    })
}

/// Fields of a line; one in quotes may have commas, none has quotes.
fn fields(line: &'static str) -> Vec<&'static str> {
    let mut fields = Vec::new();
    let mut rest = Some(line);
    while let Some(text) = rest {
        let (field, after) = match text.strip_prefix('"').and_then(|text| text.split_once('"')) {
            Some((field, after)) => (field, after.strip_prefix(',')),
            None => text.split_once(',').map_or((text, None), |(field, after)| (field, Some(after))),
        };
        fields.push(field);
        rest = after;
    }
    fields
}

/// `0.35-0.55`, `0.8-`, `-0.1` or nothing; None where it is none of these.
#[allow(clippy::option_option)]
fn band(text: &str) -> Option<Option<Band>> {
    if text.is_empty() {
        return Some(None);
    }
    let (least, most) = text.split_once('-')?;
    let side = |text: &str| if text.is_empty() { Some(None) } else { ppm(text).map(Some) };
    let band = Band { least_ppm: side(least)?, most_ppm: side(most)? };
    let ordered = band.least_ppm.zip(band.most_ppm).is_none_or(|(least, most)| least <= most);
    (ordered && band != Band { least_ppm: None, most_ppm: None }).then_some(Some(band))
}

/// Parts per million of a decimal up to 1 with at most six places.
fn ppm(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if part.len() > 6 || !digits(whole) || !digits(part) {
        return None;
    }
    let ppm = whole.parse::<u32>().ok()?.checked_mul(1_000_000)?.checked_add(format!("{part:0<6}").parse().ok()?)?;
    (ppm <= 1_000_000).then_some(ppm)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_table_is_read_whole() {
        assert_eq!(all().len(), 11);
        let decode = of(Some("inference-decode"), None).unwrap();
        assert_eq!(decode.name, "Inference, decode-bound");
        assert_eq!(decode.dram, Some(Band { least_ppm: Some(500_000), most_ppm: Some(800_000) }));
        assert_eq!(decode.tensor, Some(Band { least_ppm: None, most_ppm: Some(100_000) }));
        assert!(decode.source.contains("41.8 ms a token;"));
        let pretraining = of(Some("pretraining"), None).unwrap();
        assert_eq!(pretraining.sm, Some(Band { least_ppm: Some(800_000), most_ppm: None }));
        assert!(all().iter().all(|b| !b.source.is_empty()));
        let shapes: std::collections::BTreeSet<_> = all().iter().map(|b| b.shape).collect();
        assert_eq!(shapes.len(), all().len(), "a shape stands twice");
    }

    #[test]
    fn a_shape_is_known_or_none_is_shown() {
        let shape = |label, workload| of(label, workload).map(|b| b.shape);
        assert_eq!(shape(Some("Notebook"), Some("Job/x")), Some("notebook"));
        assert_eq!(shape(None, Some("Notebook/lab")), Some("notebook"));
        assert_eq!(shape(Some(" "), Some("Notebook/lab")), Some("notebook"));
        // A label that we do not know is not overruled by a guess.
        assert_eq!(shape(Some("diffusion"), Some("Notebook/lab")), None);
        for workload in ["PyTorchJob/x", "InferenceService/y", "Job/z", "ReplicaSet/notebook", "", "/"] {
            assert_eq!(shape(None, Some(workload)), None, "{workload}");
        }
        assert_eq!(shape(None, None), None);
    }

    #[test]
    fn bands_that_are_none_are_refused() {
        for text in ["x", "0.5", "-", "0.6-0.5", "1.1-", "0.1234567-", "0,5-1", "--"] {
            assert_eq!(band(text), None, "{text}");
        }
    }
}
