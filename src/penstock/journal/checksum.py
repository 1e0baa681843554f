"""The checksum of the journal's blocks: CRC-32 as zlib has it, by ISA-L's carry-less multiplication.

23 GB/s where zlib has 3: capture and every lane look at every byte of the log.
"""

from isal.isal_zlib import crc32

__all__ = ["crc32"]
