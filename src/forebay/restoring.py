"""Internal: what messages say is to be done where state is damaged, or a part of it is missing."""

RESTORE = "Restore the checkpoint together with its state directory from a copy."
RESTORE_FILE = "Restore the file, or the checkpoint together with its state directory, from a copy."
RESTORE_DIRECTORY = "Restore the state directory that belongs to the checkpoint; both are one unit."
