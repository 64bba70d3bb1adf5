//! Deliberate mistakes, for the simulation only (feature `mutations`): one that it does not notice means that the
//! simulation is too weak. Without the feature [`active`] is a constant, and nothing of this is in the program.

macro_rules! mutations {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// A deliberate mistake.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation {
            $($(#[doc = $text])+ $name,)+
        }

        /// All of them.
        pub const ALL: &[Mutation] = &[$(Mutation::$name,)+];

        impl Mutation {
            /// What is done wrong, in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => concat!($($text),+),)+ }
            }
        }
    };
}

mutations! {
    /// older rules dropped at the take
    RulesDroppedAtTake,
    /// older rules dropped before the new one is confirmed
    RulesDroppedUnconfirmed,
    /// rule replaced instead of added
    RuleReplaced,
    /// quorum off by one
    QuorumOffByOne,
    /// freeze lifted by a stale read
    LiftedByStaleRead,
    /// promise not persisted
    PromiseNotPersisted,
    /// promise for one version replaced by one for another
    PromiseOverwritten,
    /// freeze skipped: members answer and go on receiving
    FreezeSkipped,
    /// receiver not seen gone before the answer
    FreezeUnseen,
    /// choice made before the old holder stopped
    ReleaseBeforeStop,
    /// written without the version that was read
    WriteUnconditional,
    /// version of the write is not the one that was judged
    OtherVersionWritten,
    /// rule set in PostgreSQL before it stands in the Lease
    RuleSetBeforeLease,
    /// setting assumed in force instead of confirmed
    ConfirmAssumed,
    /// walsender that never reloaded is ignored by the confirmation
    StaleWalsenderIgnored,
    /// confirmed without a word of the new members
    MembersUnheard,
    /// no checkpoint waited for when coming from an empty setting
    NoCheckpoint,
    /// that the setting was empty is forgotten when another rule is set before the checkpoint
    EmptyForgotten,
    /// no marker commit waited for by the confirmation
    NoMarkerCommit,
    /// answers ranked by position without timeline
    RankedWithoutTimeline,
    /// answer of a member without marker counted
    MarkerIgnored,
    /// marker returns at once after a clone or rewind
    MarkerTooEarly,
    /// cloned from a laggard
    ClonedFromLaggard,
    /// old member id kept after a clone or rewind
    MemberIdKept,
    /// two standbys of one name
    TwoOfOneName,
    /// streams without a slot of its own: a walsender that lingers and its successor count twice
    WithoutSlot,
    /// timeline id used twice
    TimelineReused,
    /// diverged standby attached and listed
    DivergedAttached,
    /// history of the holder believed from before its promotion
    EarlyHistoryBelieved,
    /// end compared while the receiver still runs
    EndComparedLive,
    /// PostgreSQL set to the rule of another's term
    ForeignRuleSet,
    /// listed for the present term although it confirmed an earlier one
    ListedUnconfirmed,
    /// position under-reported after a restart is answered
    ReplayingAnswered,
    /// received but not flushed counted
    ReceivedCounted,
    /// hold granted by a member that froze
    HoldByFrozen,
    /// freeze answered while bound by a hold
    FreezeWhileBound,
    /// freeze answered by a holder that counts itself valid
    FreezeByHolder,
    /// holder that froze when it was overdue is valid again by a late hold
    FrozenHolderReturns,
    /// hold not persisted
    HoldNotPersisted,
    /// one hold too few is enough
    HoldTooFew,
    /// hold counted after a change of the rules
    HoldAfterRules,
    /// rules of a write of unknown outcome not counted with a hold
    HoldUnknownWrite,
    /// hold counted to its end by the holder, without clock rates and stop
    HoldToWrongEnd,
    /// hold counted from the answer instead of from before the request
    HoldFromAnswer,
    /// holder ignores its deadline
    DeadlineDropped,
    /// deadline counted from the answer of the renewal
    DeadlineFromAnswer,
    /// deadline on a clock that sleeps with the machine
    ClockSleeps,
    /// killer not armed
    KillerUnarmed,
    /// Lease taken early
    TakenEarly,
    /// deposable by the observer's own configuration instead of the holder's
    ObserversBounds,
    /// holder proof cloned with the data
    ProofCloned,
    /// holder proof written before the take
    ProofBeforeTake,
    /// holder proof kept when it follows another
    ProofKept,
    /// former holder's data elected although another took the Lease since
    StaleProofElected,
    /// taker that died before it wrote its proof is not known again
    TakerForgotten,
    /// absent Pod taken for dead
    AbsentPodDead,
    /// restarted container taken for dead: the id of the earlier container recorded
    RestartedContainerDead,
    /// instance outside the rules elected with Async
    OutsiderElected,
    /// EndpointSlice overwritten by an old holder
    SliceOverwritten,
    /// backends survive the kill
    BackendsSurvive,
    /// started again although the release was sent
    StartedAfterRelease,
    /// established timeline ignored by the choice
    EstablishedIgnored,
    /// candidate does not compare itself with those that are ahead of it
    AheadCounted,
    /// staged bootstrap discarded while its publication may be under way
    StagedDiscarded,
    /// copy discarded before its successor is complete
    DiscardedBeforeClone,
    /// holder stops itself at once when the API server does not answer
    StopsAtFirstFailure,
    /// rule changes are tried while the API server is away
    RulesChangedWhileAway,
    /// dead member never leaves the rules
    DeadMemberStays,
    /// sync setting emptied while there are no members
    SettingEmptied,
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static ACTIVE: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Whether this mistake is made now.
    pub fn active(mutation: Mutation) -> bool {
        ACTIVE.get() == Some(mutation)
    }

    /// Makes this mistake from now on, in this thread.
    pub fn activate(mutation: Option<Mutation>) {
        ACTIVE.set(mutation);
    }
}

#[cfg(feature = "mutations")]
pub use switch::{activate, active};

/// Whether this mistake is made now: never.
#[cfg(not(feature = "mutations"))]
pub const fn active(_: Mutation) -> bool {
    false
}
