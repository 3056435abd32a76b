"""Other projects' interfaces on lmprog."""
