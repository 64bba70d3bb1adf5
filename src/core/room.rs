//! Room on an instance's volumes: when one counts as full, what its reserve is for, and where a full primary's role should go.
//!
//! A part of each volume is held back in a file, so that a full one still has room for what PostgreSQL must write to start, to
//! be promoted, to checkpoint and to stop. It is given up only while no client and no stream of WAL could eat it.

use std::time::Duration;

use crate::api::agent::FullVolume;

const MIB: u64 = 1024 * 1024;

/// A part of the reserve that stays for the agent's own small files: without them it can promise nothing, so not be elected.
pub const LAST: u64 = 4 * MIB;

/// What PostgreSQL must be able to write at any time: a segment of WAL and something small.
const SEGMENT: u64 = 24 * MIB;

/// A primary that has held the Lease for less than this hands over to nobody for its room: volumes that fill in turn would
/// make the role wander.
const CALM: Duration = Duration::from_mins(1);

/// A volume as it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can still be written.
    pub free: u64,
    /// Bytes that it has, or was asked for where it shares a larger disk.
    pub total: u64,
    /// Bytes that are held back.
    pub reserve: u64,
}

impl Room {
    /// The measure of this volume: so much is held back, and at so much beside that it counts as full.
    pub fn measure(&self) -> u64 {
        (self.total / 16).clamp(32 * MIB, 128 * MIB)
    }

    /// What could be written beside a complete reserve: giving that up, or making it again, changes nothing of it.
    fn usable(&self) -> u64 {
        self.free.saturating_add(self.reserve).saturating_sub(self.measure())
    }

    /// Whether it counts as full, given whether it did. Between full and not full lies as much again.
    pub fn full(&self, before: bool) -> bool {
        self.usable() < self.measure() * if before { 2 } else { 1 }
    }

    /// Whether there is enough that a primary should come here from a volume that is full.
    pub fn roomy(&self) -> bool {
        self.usable() >= self.measure() * 3
    }
}

/// What to do with the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Nothing.
    Keep,
    /// Give it up, down to [`LAST`].
    GiveUp,
    /// Hold back so much.
    Make(u64),
}

/// What to do with the reserve of a volume. `eaten`: whether a primary or a stream of WAL may write to it now.
pub fn reserve(room: Room, full: bool, eaten: bool) -> Reserve {
    if room.free < SEGMENT && room.reserve > LAST && !eaten {
        Reserve::GiveUp
    } else if !full && room.reserve < room.measure() {
        Reserve::Make(room.measure())
    } else {
        Reserve::Keep
    }
}

/// The first of an instance's volumes that is full.
pub fn first_full(data: bool, wal: bool) -> Option<FullVolume> {
    match (data, wal) {
        (true, _) => Some(FullVolume::Data),
        (false, true) => Some(FullVolume::Wal),
        (false, false) => None,
    }
}

/// To whom a primary on a full volume hands over: a replica that could take over and has room. `held` is how long it has held
/// the Lease; the others are in the order in which they are preferred.
pub fn hands_over(full: bool, held: Duration, roomy: &[String]) -> Option<&String> {
    roomy.first().filter(|_| full && held >= CALM)
}

/// Whether a primary whose PostgreSQL ended on a full volume starts again in place, with writes refused: where nobody has
/// room, whoever took over would end alike.
pub fn restarts_in_place(full: bool, roomy: &[String]) -> bool {
    full && roomy.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A volume of 1 GiB: 64 MiB are held back.
    fn room(free: u64, reserve: u64) -> Room {
        Room { free: free * MIB, total: 1024 * MIB, reserve: reserve * MIB }
    }

    #[test]
    fn the_measure_follows_the_size_within_bounds() {
        let of = |total| Room { free: 0, total: total * MIB, reserve: 0 }.measure() / MIB;
        assert_eq!([of(320), of(1024), of(1 << 20)], [32, 64, 128]);
    }

    #[test]
    fn full_begins_at_one_measure_and_ends_at_two() {
        assert!(!room(64, 64).full(false));
        assert!(room(63, 64).full(false));
        assert!(room(127, 64).full(true));
        assert!(!room(128, 64).full(true));
        assert!(!room(191, 64).roomy());
        assert!(room(192, 64).roomy());
    }

    #[test]
    fn the_reserve_is_given_up_when_nobody_can_eat_it_and_made_again_when_there_is_room() {
        assert_eq!(reserve(room(3, 64), true, true), Reserve::Keep, "it would be eaten");
        assert_eq!(reserve(room(3, 64), true, false), Reserve::GiveUp);
        assert_eq!(reserve(room(3, 4), true, false), Reserve::Keep, "the last of it is the agent's");
        assert_eq!(reserve(room(63, 4), true, false), Reserve::Keep);
        assert_eq!(reserve(room(300, 4), false, true), Reserve::Make(64 * MIB));
        assert_eq!(reserve(room(300, 64), false, false), Reserve::Keep);
    }

    #[test]
    fn a_full_primary_goes_where_there_is_room_and_the_role_does_not_wander() {
        let (nobody, other) = (Vec::new(), vec!["db-2".to_owned()]);
        let long = Duration::from_mins(5);
        assert_eq!(hands_over(true, long, &other).map(String::as_str), Some("db-2"));
        assert_eq!(hands_over(false, long, &other), None);
        assert_eq!(hands_over(true, long, &nobody), None);
        assert_eq!(hands_over(true, Duration::from_secs(59), &other), None, "it came just now");
        assert!(restarts_in_place(true, &nobody));
        assert!(!restarts_in_place(true, &other) && !restarts_in_place(false, &nobody));
    }

    proptest! {
        #[test]
        fn giving_up_and_making_the_reserve_never_changes_what_is_full(
            free in 0_u64..400, reserve in 0_u64..=64, before: bool, moved in 0_u64..=64,
        ) {
            let moved = moved.min(reserve);
            prop_assert_eq!(room(free, reserve).full(before), room(free + moved, reserve - moved).full(before));
            prop_assert_eq!(room(free, reserve).roomy(), room(free + moved, reserve - moved).roomy());
        }

        #[test]
        fn where_there_is_room_nothing_is_full_and_a_full_one_is_made_no_reserve(free in 0_u64..400, kept in 0_u64..=64) {
            let room = room(free, kept);
            prop_assert!(!(room.roomy() && room.full(true)));
            if let Reserve::Make(size) = reserve(room, room.full(false), true) {
                // What is made fits, and does not fill the volume.
                prop_assert!(size - room.reserve <= room.free);
                let after = Room { free: room.free - (size - room.reserve), reserve: size, ..room };
                prop_assert!(!after.full(false));
            }
        }
    }
}
