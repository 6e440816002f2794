//! A fixture's batch as a step's plan, and as what data actors would send.

use super::PoolLayouts;
use crate::model::Towers;
use crate::train::parity::{Document, Fixture};
use loongforge_core::message::{
    ActorId, ItemId, ItemMeta, Lane, Pack, PackId, PoolName, Replica, SampleId, SampleMeta, StepId, StepPlan, Tower,
    Unit, UnitId, UnitItem,
};
use loongforge_core::transport::{Buffer, Header, HostTensor, Parcel, ParcelKind};
use tch::{Kind, Tensor};

use super::super::buffer::TorchBuffer;

/// The documents, and how they are dealt.
pub struct Batch {
    documents: Vec<Document>,
    towers: Towers,
    num_targets: u64,
    /// The numbers of the documents of each pack.
    packs: Vec<Vec<usize>>,
}

impl Batch {
    /// The documents are dealt to `num_packs` packs in turns.
    pub fn new(fixture: Fixture, num_packs: usize) -> Batch {
        let num_documents = fixture.documents.len();
        let deal = |pack: usize| (pack..num_documents).step_by(num_packs).collect::<Vec<_>>();
        Batch {
            num_targets: fixture.num_targets() as u64,
            packs: (0..num_packs).map(deal).filter(|pack| !pack.is_empty()).collect(),
            documents: fixture.documents,
            towers: fixture.config.towers,
        }
    }

    /// Pack `p` is of replica `p % replicas`, and its items of a tower are one unit.
    pub fn plan(&self, step: u64, layouts: &PoolLayouts, learning_rate: f64) -> StepPlan {
        let step = StepId(step);
        let replicas = layouts.foundation.dp as u32;
        let encoders = layouts.encoders(self.towers.set());
        let encoder = |items: &[UnitItem], pack: u32| {
            let pool = encoders.iter().find(|pool| pool.towers.contains(items[0].meta.tower));
            let pool = pool.expect("every tower has a pool");
            Replica::new(pool.name, pack % pool.layout.layout.dp as u32)
        };
        let numbered = || (0u32..).zip(&self.packs);
        let packs = numbered().map(|(index, documents)| Pack {
            id: PackId { step, index },
            replica: Replica::foundation(index % replicas),
            samples: documents.iter().map(|document| self.sample(*document)).collect(),
        });
        let of_tower = |documents: &[usize], tower: Tower| {
            let items = documents.iter().flat_map(|document| self.items(*document));
            items.filter(|item| item.meta.tower == tower).collect::<Vec<UnitItem>>()
        };
        let groups = numbered().flat_map(|(pack, documents)| Tower::ALL.map(|it| (pack, of_tower(documents, it))));
        let groups = groups.filter(|(_, items)| !items.is_empty());
        let unit = |(index, (pack, items)): (u32, (u32, Vec<UnitItem>))| Unit {
            id: UnitId { step, index },
            lane: Lane(encoder(&items, pack).index),
            encoder: encoder(&items, pack),
            pack: PackId { step, index: pack },
            replica: Replica::foundation(pack % replicas),
            items,
        };
        StepPlan {
            step,
            purpose: Default::default(),
            cursor: SampleId(0),
            learning_rate,
            num_targets: self.num_targets,
            replica_ranks: [(PoolName::FOUNDATION, layouts.foundation.replica_ranks() as u32)].into(),
            packs: packs.collect(),
            units: (0..).zip(groups).map(unit).collect(),
        }
    }

    fn items(&self, document: usize) -> impl Iterator<Item = UnitItem> {
        let meta = |tower, grid| ItemMeta { tower, grid, num_features: self.towers.num_features(tower, grid) as u32 };
        let items = self.documents[document].items.iter();
        let metas = items.flat_map(move |items| items.grids.iter().map(move |grid| meta(items.tower, *grid)));
        (0..).zip(metas).map(move |(index, meta)| UnitItem {
            id: ItemId { sample: SampleId(document as u64), index },
            owner: 0,
            meta,
        })
    }

    fn sample(&self, document: usize) -> SampleMeta {
        let found = &self.documents[document];
        SampleMeta {
            items: self.items(document).map(|item| item.meta).collect(),
            ..SampleMeta::of_tokens(
                SampleId(document as u64),
                found.input_ids.len() as u32,
                found.targets.iter().filter(|target| **target >= 0).count() as u32,
            )
        }
    }

    /// Returns the parcel that a data actor sends of a pack.
    pub fn tokens(&self, pack: PackId) -> Parcel {
        let documents: Vec<&Document> =
            self.packs[pack.index as usize].iter().map(|document| &self.documents[*document]).collect();
        let joined = |part: fn(&Document) -> &[i64]| documents.iter().copied().flat_map(part).copied();
        let row = |values: Vec<i64>| Box::new(HostTensor::from_i64(&values, &[values.len()])) as Box<dyn Buffer>;
        let positions = |document: &&Document| {
            let positions = document.position_ids.to_kind(Kind::Float);
            positions.view([-1, document.input_ids.len() as i64]).expand([3, -1], false)
        };
        let positions = Tensor::cat(&documents.iter().map(positions).collect::<Vec<_>>(), 1);
        let tensors = vec![
            row(joined(|document| &document.input_ids).collect()),
            Box::new(TorchBuffer::new(&positions)) as Box<dyn Buffer>,
            row(joined(|document| &document.targets).collect()),
        ];
        Parcel::new(header(ParcelKind::Columns(pack)), tensors)
    }

    /// Returns the parcel that a data actor sends of a unit.
    pub fn pixels(&self, unit: &Unit) -> Parcel {
        let documents = self.packs[unit.pack.index as usize].iter().map(|document| &self.documents[*document]);
        let items = documents.filter_map(|document| document.items_of(unit.tower()));
        let pixels: Vec<&Tensor> = items.map(|items| &items.values).collect();
        let pixels = TorchBuffer::new(&Tensor::cat(&pixels, 0).to_kind(Kind::Float));
        Parcel::new(header(ParcelKind::Items(unit.id)), vec![Box::new(pixels)])
    }
}

/// Returns the header of a parcel without a version.
fn header(kind: ParcelKind) -> Header {
    Header { kind, version: loongforge_core::message::Version(0) }
}

/// The actor that would send it.
pub const DATA: ActorId = ActorId::data(0);
