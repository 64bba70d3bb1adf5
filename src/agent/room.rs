//! The room on this instance's volumes: measured at each turn, a part of it held back, and given up when it is needed.

use std::time::Duration;

use opentelemetry::trace::SpanContext;

use super::Error;
use super::commands::Switchover;
use super::conf::asked;
use super::duties::Turn;
use super::process::boottime;
use super::run::{Agent, Event};
use super::volume::{ReserveFile, disk};
use crate::api::agent::{Disk, FullVolume, HandOverReason};
use crate::core::election::planned::Candidate;
use crate::core::election::{EngineState, Job};
use crate::core::room::{LAST, Reserve, Room, first_full, hands_over, reserve, restarts_in_place};

/// A file system that cannot hold room back is asked again after this.
const RETRY: Duration = Duration::from_mins(10);

/// The room on the volumes, as it was measured last.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    pub(super) disk: Option<Disk>,
    pub(super) wal_disk: Option<Disk>,
    data_full: bool,
    wal_full: bool,
    pub(super) full: Option<FullVolume>,
    pub(super) roomy: bool,
    making: Turn,
}

impl Agent {
    /// Measures the volumes, and does with what is held back there what is to be done.
    pub(super) fn look_at_room(&mut self) {
        let eaten = self.room_is_eaten();
        self.measure(eaten);
        self.seek_room();
    }

    /// PostgreSQL is about to start, to be promoted or to stop: it gets what it needs for that.
    pub(super) fn give_way(&mut self) {
        self.measure(false);
    }

    fn measure(&mut self, eaten: bool) {
        // Before the configuration was read nothing is started, and it is not known what a volume was asked to hold.
        let Some(config) = &self.config else { return };
        let (layout, storage) = (&self.place.layout, &config.spec.storage);
        self.rooms.disk = disk(layout.data()).ok();
        let data = self.rooms.disk.map(|disk| room(disk, asked(&storage.size), layout.reserve()));
        let wal = layout.wal_reserve().zip(storage.wal_size.as_ref());
        self.rooms.wal_disk = wal.as_ref().and_then(|_| disk(layout.wal()).ok());
        let wal = self.rooms.wal_disk.zip(wal).map(|(disk, (reserve, size))| room(disk, asked(size), reserve));
        let looks = [(data, &mut self.rooms.data_full), (wal, &mut self.rooms.wal_full)];
        let mut acts = Vec::new();
        let mut roomy = true;
        for (look, full) in looks {
            // What cannot be measured is as it was.
            let Some((room, file)) = look else { continue };
            *full = room.full(*full);
            roomy &= room.roomy();
            acts.push((reserve(room, *full, eaten), file));
        }
        self.rooms.roomy = roomy && self.rooms.disk.is_some();
        let full = first_full(self.rooms.data_full, self.rooms.wal_full);
        if std::mem::replace(&mut self.rooms.full, full) != full {
            match full {
                Some(full) => tracing::error!("the {} is full: raise {}", full.name(), full.field()),
                None => tracing::info!("there is room on the volumes again"),
            }
        }
        for (act, file) in acts {
            match act {
                Reserve::Keep => {}
                Reserve::GiveUp => {
                    tracing::warn!("gives up what is held back, so that PostgreSQL has room");
                    if let Err(error) = file.give_up(LAST) {
                        tracing::warn!(%error, "the reserve");
                    }
                }
                Reserve::Make(size) => self.hold_back(file, size),
            }
        }
    }

    fn hold_back(&mut self, file: ReserveFile, size: u64) {
        if !self.rooms.making.due() {
            return;
        }
        self.rooms.making.begin();
        let events = self.events.clone();
        // Some file systems write all of it.
        tokio::task::spawn_blocking(move || {
            let _ = events.blocking_send(Event::Reserved(file.make(size)));
        });
    }

    /// The reserve was made, or could not be: then this volume has none.
    pub(super) fn reserved(&mut self, outcome: &Result<(), Error>) {
        if let Err(error) = outcome {
            tracing::warn!(%error, "no room can be held back for the time when the volume is full");
        }
        self.rooms.making.end(if outcome.is_ok() { Duration::ZERO } else { RETRY });
    }

    /// Whether clients or a stream of WAL would eat what is given up now.
    fn room_is_eaten(&self) -> bool {
        match &self.engine {
            // Also one that refuses its clients' writes: what it writes itself goes into the segments that it has, and when it
            // ends for want of one, it needs all of this to start again.
            EngineState::Primary => true,
            EngineState::Standby { source, .. } => source.is_some(),
            EngineState::Busy(Job::Clone | Job::Bootstrap) => true,
            EngineState::Busy(Job::StartStandby) => self.job.as_ref().is_some_and(|job| job.source.is_some()),
            EngineState::Busy(_) | EngineState::Stopped => false,
        }
    }

    fn roomy(&self) -> Vec<String> {
        let roomy = |candidate: Candidate| candidate.roomy.then_some(candidate.instance);
        self.members.candidates().into_iter().filter_map(roomy).collect()
    }

    /// Whether the volume is full here, and no replica could do better. It is measured anew: who filled it may have been quick.
    pub(super) fn nobody_has_room(&mut self) -> bool {
        self.measure(false);
        restarts_in_place(self.rooms.full.is_some(), &self.roomy())
    }

    /// The primary of a full volume hands over to a replica that has room.
    fn seek_room(&mut self) {
        let mine = |asked: &Switchover| asked.reason == HandOverReason::DiskFull;
        if self.tenure.is_none() || self.switchover.as_ref().is_some_and(|asked| !mine(asked)) {
            return;
        }
        let primary = self.engine == EngineState::Primary && self.rooms.full.is_some();
        let roomy = self.roomy();
        let to = hands_over(primary, self.members.age(boottime()), &roomy).cloned();
        let wish = to.map(|to| Switchover {
            to,
            id: None,
            reason: HandOverReason::DiskFull,
            asked_by: SpanContext::empty_context(),
        });
        if let Some(wish) = wish.as_ref().filter(|wish| self.switchover.as_ref() != Some(wish)) {
            tracing::warn!(to = %wish.to, "the volume is full here, and there is room");
        }
        self.switchover = wish;
    }
}

fn room(disk: Disk, asked: u64, file: ReserveFile) -> (Room, ReserveFile) {
    (Room { free: disk.free, total: disk.total.min(asked), reserve: file.size() }, file)
}
