"""What can go wrong in a run, by name. `docs/simulator.md` has this as a table: `python -m tara.simulator.tables`.

Some kinds are planned (`tara.simulator.plan`), others are drawn while the run goes on, or follow from another one.
Each is counted when it happens.
"""

#: By what they hit; kinds and what happens.
SECTIONS: dict[str, dict[str, str]] = {
    "processes": {
        "crash": "a container dies, and starts again later",
        "crash_before_sync": "it dies while it writes its journal, or begins a segment; nothing was sent",
        "torn_tail": "the record that it was writing then is in the file in part",
        "crash_after_sync": "it dies with everything written and nothing sent",
        "crash_in_multicast": "it dies between two frames",
        "crash_between": "it dies between any two effects of a step",
        "crash_in_start": "the same, in the step in which a proposer starts a view",
        "crash_in_storage": "it dies between two operations of its disk, of the journal, the bases or the log",
        "power_cut": "three of ten crashes: what was not synced is gone, or a part of it",
        "crash_stage": "all replicas of a stage crash; the service may stall, but nothing may be damaged",
        "crash_stage_again": "the same up to five times, before the replicas have recovered",
        "crash_many": "f+1 sites crash",
        "crash_all": "everything crashes",
        "stage_storm": "the replicas of a stage are restarted again and again",
        "orderly_restart": "a container is stopped as an operator would stop it, and started again",
        "start_failed": "a container cannot start, because its disk is full or fails; it is tried again",
        "pause": "a container stands still",
        "zombie": (
            "a container is given up and started again elsewhere, while its old process goes on; for a while some "
            "others still send to the old address"
        ),
        "lost_for_good": "f replicas of each stage do not come back when the faults stop",
        "late_faults": (
            "when all is at full strength again, faults begin once more, and a second quiet period follows"
        ),
        "broken_node": (
            "an invariant of a node is broken, or an executor runs out of memory; the container is started anew a "
            "little later"
        ),
        "node_halted": "a node has stopped because of that; its container goes on without it",
        "deep_stack": "steps begin deep in the stack, and commands recurse to the bound",
    },
    "lost journals": {
        "amnesia": (
            "a container comes back without its journal, perhaps also without its bases and its log; half of the time "
            "a suspicion follows"
        ),
        "forgotten_promise": (
            "a committer leaves a view, decides something in the next one, loses its journal, and is offered the view "
            "that it had left: `stories/forgotten_promise.py`"
        ),
        "outdated_record": (
            "a committer gives its record for a view, loses its journal, decides something in a lower view, and its "
            "old record arrives: `stories/outdated_record.py`"
        ),
        "half_remembered": (
            "with several partitions: a site's journal begins a new segment while one of its committers is restored "
            "and another one is not; then it restarts: `stories/half_remembered.py`"
        ),
        "forgotten_standby": (
            "with one container per node: a stand-by proposer restarts, and then all who know of that: "
            "`stories/forgotten_standby.py`"
        ),
        "forgetful_witness": (
            "something is read where little is known, and the only witness of the rest has lost its journal: "
            "`stories/forgetful_witness.py`"
        ),
        "given_up_alive": (
            "in a fifth of the runs: a committer is given up and started again elsewhere, and its old process is "
            "offered the view that brings the new one back: `stories/given_up_alive.py`"
        ),
        "former_places": (
            "in a fifth of the runs, with several partitions and one container per node: all executors restart behind "
            "where they had been, in a view whose proposer dies before it has proposed anything: "
            "`stories/former_places.py`"
        ),
        "late_answers": (
            "in most runs with one container per node: results of the reads of a front end's former "
            "life arrive when the next one has sent others: `stories/late_answers.py`"
        ),
        "old_disk": "a container that ran elsewhere for a while comes back to the disk that it had before",
        "older_directory": "a container comes back with an older copy of its directory",
        "older_records": "the driver has an older copy of what it knows of a container",
        "life_damaged": "the file in which a container keeps its lives is damaged",
        "life_unknown": "a container could not read that file, and starts with the numbers of the driver",
        "losses_beyond_f": (
            "more committers lose their journals than the protocol survives: nothing has to be answered any more, but "
            "what is answered has to be right"
        ),
        "new_era": (
            "everything is lost but bases and logs, and an operator begins a new era, as `tara recover` does; "
            "each era's history is judged by itself"
        ),
    },
    "disks": {
        "disk_full": "for a while, some calls find no room, or all",
        "no_room": "a container could not write its journal because of that, and waits",
        "disk_slow": "syncs and bytes take their time; journal, bases and log share it",
        "disk_error": (
            "the next call of some kind for some kind of file fails, once, with an I/O error or for want of room: of "
            "the end marker, a segment of the journal or its directory, a base, a file of the log, an execution "
            "record, a container's file of its lives"
        ),
        "torn_record": "a record is written in part, and what is there of it cannot be cut off",
        "directory_error": (
            "the next sync of the directory of a log or of bases fails, once, likewise; or the next list of what is in "
            "it, own or a peer's"
        ),
        "damage_after_power_cut": (
            "a machine loses its power, and when it is back a segment of a container's journal is gone, or all but the "
            "beginning of the last one: the end marker may be older than what was promised"
        ),
        "disk_failed": "a container ended because of a file that it could not write",
        "sync_fails": (
            "a sync is refused, and what it was for is never durable, though it can be read until the power fails"
        ),
        "journal_failed": "a container ended because its journal could not be written",
        "unreadable": "some sectors of a file of the journal or the log cannot be read",
        "marker_lost": "a container comes back to a journal without its end marker",
        "journal_damaged": (
            "a container comes back with a damaged journal; half of the time a suspicion follows. Its committers count "
            "as down until they have no holes. The next rows say how it was damaged"
        ),
        "journal_flip": "a bit was flipped",
        "journal_zero": "some bytes are zeros",
        "journal_cut": "the end is cut off",
        "journal_remove": "a segment, or the end marker, is missing",
        "journal_swap": "two segments are exchanged",
        "journal_stale": "a segment is older than it was",
        "journal_misdirected": "a write went to another segment",
        "journal_repaired": "a container has repaired such a journal",
        "journal_given_up": "a container has set a journal aside, and rejoins without it",
        "holes": "a committer does not know all that it has accepted, after such a repair",
        "checkpoint_damaged": "one base or segment of an executor is damaged likewise, where all others have theirs",
        "rotten_checkpoint": (
            "in a fifth of the runs: an executor that nobody is ahead of starts again at once with its newest base or "
            "segment, of which one bit was flipped"
        ),
        "log_damaged": "one file of a log is damaged likewise",
        "log_gap": (
            "in a fifth of the runs: the stores of all executors but one stand still until it is two checkpoints "
            "ahead, and it starts again at once, with the first of these two segments damaged likewise"
        ),
        "torn_blocks": "in a fifth of the runs: from then on, three of ten blocks of a log are written in part",
        "store_slow": "the stores take up to 500 ms for each piece of work",
        "long_work": "the stores need 5 or 40 ms for each kilobyte that they read or write, less where values are long",
        "store_failing": "it can be neither written nor read, or not read, and perhaps everything restarts meanwhile",
        "breaks_off": "a transfer of a base or of a segment from another site breaks off",
    },
    "network and clocks": {
        "drop": "a frame, or a message between a client and a site, is lost",
        "duplicate": "it arrives twice",
        "reorder": "a frame arrives late",
        "replay": "an old frame arrives again, perhaps of a former life",
        "partition": "a site or a link is cut",
        "one_way": "a link is cut in one direction",
        "partition_inside": "the containers of a site do not hear each other",
        "slow_link": "a link is slowed by 50–400 ms",
        "narrow_links": (
            "in two of five runs: sites send at most 20 or 100 Mbit/s, and more with a higher f or several partitions; "
            "what is beyond that waits, control before bulk"
        ),
        "no_link": "half of the time, what is sent to a container that is down is dropped by the sender",
        "controller_cut": (
            "a controller hears nothing from the executors of other containers; after that, perhaps the next one"
        ),
        "suspicion": "the controllers take the active proposer for dead, although it is not",
        "clock_jump": "the clock of a container jumps up to 20 s ahead, or up to 100 s back with its next life",
        "clock_drift": "clocks run up to 5 % fast or slow",
        "bulk": (
            "in one of 25 runs nothing fails, but most commands are up to a megabyte long and links carry 20, 100 or "
            "1000 Mbit/s; at most, the controllers are wrong once. Then views must not change again and again, must "
            "begin as fast as the links carry the records, and what is on its way must not be ordered again"
        ),
    },
    "clients and commands": {
        "client_restart": "a client forgets its session",
        "farewell": "a client that has nothing in flight ends its session, and does not wait for an answer",
        "client_pause": "a client is silent, perhaps until its session expires",
        "client_retry": "a client that got no answer turns to another front end",
        "broken_connection": "a client notices that the process of its front end has ended",
        "client_timeout": "a client does not wait for an answer any longer",
        "unread": "a client does not read its answers",
        "stale_read": "a client reads, and any state will do",
        "read_ordered": "a read was not answered in time, and is ordered like a command",
        "too_large": "a client has more to send than a command may have",
        "limit_unheard": "a client does not hear of the limit, and sends it; the front end refuses it",
        "overload": "all clients fill their pipelines",
        "overloaded": "a front end had no room for a command, and said so",
        "unacknowledged": (
            "in the plans of a third of the seeds a session may keep a few results only; a command was refused until "
            "results are acknowledged"
        ),
        "poison": "a command makes the application raise",
        "fatal_command": (
            "in a fifth of the runs: a command at which the application runs out of memory, or which ends the process, "
            "on one replica, on f+1 or on all; one replica is restarted right after a skip"
        ),
        "command_skipped": "an operator has such a command skipped, as `tara skip` does",
        "command_tried_again": "an operator has such a command tried again, as `tara skip --retry` does",
        "bad_snapshot": (
            "the application of a replica raises when it is to give its next snapshot, or gives something else than "
            "bytes: that base is given up, and nothing else"
        ),
        "fatal_snapshot": (
            "in a fifth of the runs: for some seconds, snapshots end the process, on one replica or on all; after two "
            "ends in a row a replica gives its bases up"
        ),
        "base_ordered": "an operator has bases taken all the same, as `tara verify --running` does",
        "many_reads": (
            "two strangers send more reads at once than a front end remembers; or, where values are long, all of "
            "them again and again"
        ),
        "odd_commands": "somebody sends commands that make no sense, of kinds that clients do not send",
        "stranger": (
            "somebody else sends commands into a client's session, under the numbers that the client uses next, or "
            "closes it"
        ),
        "operator": "an operator lists the sessions, and perhaps closes one, and has the digests of the states drawn",
        "garbage": "somebody sends what is no frame, or not for this cluster",
        "refused_frame": "a container could not read such a frame, and refused it",
        "foreign_frame": "a container dropped a frame of another cluster or era, or of a life that is over",
        "idle_partition": "all clients use partition 0",
        "smallest_window": "the plan has a checkpoint after every slot",
    },
    "the front ends of the coordination service": {
        "cramped_gateway": "they have little room",
        "sluggish_gateway": "they are so slow that a turn is over before all is done",
        "inquiry": "a stranger asks all four-letter words",
        "crowd": "many connect, and say nothing",
        "torrent": "a stranger sends hundreds of requests in one piece",
        "deaf_client": "a stranger does not fetch the answers",
        "many_watches": "a stranger sets hundreds of watches again, or refers to paths that are too long",
        "odd_requests": "a stranger sends what is no request, or sends it without a session",
        "unended_uploads": "strangers begin more long requests than there is room for, and end none",
        "taken_session": "a stranger comes with a session that another one has",
    },
}

FAULT_KINDS: frozenset[str] = frozenset(kind for kinds in SECTIONS.values() for kind in kinds)
