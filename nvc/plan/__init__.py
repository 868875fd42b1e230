"""From facts and a selection to a frozen list of operations. Pure: nothing here touches the system."""
