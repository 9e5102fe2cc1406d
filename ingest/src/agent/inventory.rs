//! The devices that pages show, as the inventory of their node: for sites without another one.

use crate::page::Page;
use schemas::Timestamp;
use schemas::proto::{Device, Node};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Source of the node states that come from what pages show.
pub const SOURCE: &str = "agent";

/// What was last published of a node's inventory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Inventory {
    first_seen: BTreeMap<String, Timestamp>,
    /// Profile and product of each device as last shown: one that is gone from the page still is what it was.
    #[serde(default)]
    facts: BTreeMap<String, (String, String)>,
    last_published: Option<Timestamp>,
    /// Latest instant that a published state was observed at. A page may be older, and its state must stand all the same.
    #[serde(default)]
    observed: Option<Timestamp>,
    revision: u64,
}

impl Inventory {
    pub(super) fn of(node: &Node) -> Self {
        let since = |d: &Device| (d.device.clone(), Timestamp::from_ms(d.present_from_ms.unwrap_or(node.present_from_ms)));
        Inventory {
            first_seen: node.devices.iter().map(since).collect(),
            facts: node.devices.iter().map(|d| (d.device.clone(), (d.profile.clone(), d.product.clone()))).collect(),
            last_published: None,
            observed: Some(Timestamp::from_ms(node.observed_at_ms)),
            revision: node.revision,
        }
    }

    /// The node's state where it has changed, or was published ten minutes ago.
    pub(super) fn seen(&mut self, cluster: &str, node: &str, page: &Page, at: Timestamp) -> Option<Node> {
        let mut changed = false;
        for device in &page.devices {
            let id = &device.sample.device;
            if self.first_seen.get(id).is_none_or(|first| at < *first) {
                self.first_seen.insert(id.clone(), at);
                changed = true;
            }
            let (profile, product) = self.facts.entry(id.clone()).or_default();
            for (known, shown) in [(profile, &device.sample.profile), (product, &device.sample.product)] {
                if !shown.is_empty() && known != shown {
                    known.clone_from(shown);
                    changed = true;
                }
            }
        }
        let due = self.last_published.is_none_or(|last| at.ms() - last.ms() >= attribution::sightings::SNAPSHOT_EVERY_MS);
        if !(changed || due) || self.first_seen.is_empty() {
            return None;
        }
        self.last_published = Some(at);
        self.observed = self.observed.max(Some(at));
        self.revision += 1;
        let device = |(id, since): (&String, &Timestamp)| {
            let (profile, product) = self.facts.get(id).cloned().unwrap_or_default();
            let parent = id.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned());
            Device { device: id.clone(), parent, profile, product, present_from_ms: Some(since.ms()), ..Device::default() }
        };
        Some(Node {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
            source: SOURCE.to_owned(),
            observed_at_ms: self.observed.unwrap_or(at).ms(),
            revision: self.revision,
            present_from_ms: self.first_seen.values().min()?.ms(),
            product: page.devices.first().map_or(String::new(), |d| d.sample.product.clone()),
            devices: self.first_seen.iter().map(device).collect(),
            ..Node::default()
        })
    }
}
