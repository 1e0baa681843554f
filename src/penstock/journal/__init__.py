"""The durable, append-only copy of a source's log, in the source's own bytes.

A journal is a directory:

    lock              held by the one capture that writes
    catalog           every table version, in order of appearance
    0000000001.seg    a segment: blocks, each with a checksum
    0000000001.idx    the segment's index: the same notes as its note blocks, without the data

A segment begins with a header block (the catalogue in force, so that older segments can go), then data blocks and note
blocks follow. A data block holds one slice: whole transactions, or one piece of a big one, byte for byte as the server
sent them. A note block says which data blocks have become visible, in log order, and up to which position the journal is
complete. One fdatasync makes a group of blocks durable; only then is the note copied to the index, which is all that
readers look at. Segments are the truth; index and catalogue are rebuilt from them when damaged.
"""
